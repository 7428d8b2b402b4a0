//! From what people write to a job that can run, or to everything that is wrong with it.
