//! The commands.

mod cordon;
mod get;
mod job_watch;
mod ledger;
mod lists;
mod logs;
mod partition;
mod pod_problem;
mod scale;
mod submit;
mod why;

pub(crate) use self::cordon::{cordon, drain, uncordon};
pub(crate) use self::get::get;
pub(crate) use self::ledger::{release, repair, stats, usage};
pub(crate) use self::lists::{controllers, cordons, machines, partitions, top, waiting};
pub(crate) use self::logs::{exec, logs};
pub(crate) use self::partition::partition;
pub(crate) use self::scale::scale;
pub(crate) use self::submit::submit;
pub(crate) use self::why::why;
