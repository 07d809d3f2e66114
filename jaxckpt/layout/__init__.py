"""Pure plans: where bytes go. Imports jax for trees and shardings only, and does no I/O."""
