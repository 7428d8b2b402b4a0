//! `kubectl ipu doctor`: finds faults of an installation.
//!
//! `collect` reads a snapshot of facts with the rights of the caller and tries the connections of the
//! installation. The table in `rules` has a row for each kind of fault, whose check is a pure function of the
//! facts. A fact that the caller may not read makes a rule "not checked", never passed.

mod collect;
mod facts;
mod finding;
mod fixes;
mod report;
mod rights;
mod rules;

pub(crate) use self::report::run;
