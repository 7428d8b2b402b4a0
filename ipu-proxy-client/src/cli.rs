//! Parts that `ipuctl` and `kubectl ipu` share: exit codes, the documents as tables, times, and cordons.

mod cordon;
mod documents;
mod exit_code;
mod table;
pub mod time;
#[cfg(feature = "top")]
pub mod top;

pub use self::cordon::{CordonSelector, CordonSelectorError, DrainedCordon, cordoned_text, uncordoned_text};
pub use self::documents::{
    controllers, cordons, foreign_partitions, held_seconds, ipu_seconds, machines, state_label, stats,
    text_or_empty, usage,
};
pub use self::exit_code::{Code, Failure};
pub use self::table::{Table, align, printable};
