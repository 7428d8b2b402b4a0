//! The life-cycle rules, one per file. Each rule is a pure function `decide` of a few facts and is
//! independent of the others. Only [`plan`](crate::job::plan()) combines them. `docs/rules.md` is generated
//! from their headers.

pub(crate) mod backoff;
pub(crate) mod cleanup;
pub(crate) mod deadline;
pub(crate) mod finalize;
pub(crate) mod first_failure;
pub(crate) mod interactive;
pub(crate) mod orphan;
pub(crate) mod preempt;
pub(crate) mod request;
pub(crate) mod reset;
pub(crate) mod restart;
pub(crate) mod scale;
pub(crate) mod start_deadline;
pub(crate) mod suspend;

#[cfg(test)]
mod case_tests;
#[cfg(test)]
#[path = "../../tests/it/datadriven.rs"]
mod datadriven;
#[cfg(test)]
mod table_tests;
