//! Runs every target on its corpus, on mutations of it, and on random bytes.

mod mutation;
mod targets;
