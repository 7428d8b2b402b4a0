//! `kubectl ipu doctor`: finds faults of an installation.
//!
//! `collect` reads a snapshot of facts with the rights of the caller, and each rule is a pure function of it.
//! A fact that the caller may not read makes a rule "not checked", never passed.

mod collect;
mod facts;
mod finding;
mod report;
mod rules;
#[cfg(test)]
mod tests;
mod trust;

use self::collect::collect;
pub(crate) use self::report::run;
