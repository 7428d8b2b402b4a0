//! Static partitions of a node (Slurm guide §8.3): which job has which, in files that Graphcore's scripts
//! read too.
//!
//! | Path in the directory | Content |
//! |---|---|
//! | `free/<partition>`, `allocated/<partition>` | a [`PoolFile`]; its directory is the state of the partition |
//! | `p<job id>` | the *pointer* of a job: the name of its partition, or one name a line |
//! | `allocation.lock` | the file that `flock` locks |
//!
//! The pointers decide, and the directories follow. A process plans its [`PoolOperation`]s under the lock,
//! and each step is one atomic operation. So [`PoolState::repair`] completes or undoes what a crash between
//! two steps left.

mod file;
mod state;

pub use file::PoolFile;
pub use state::{BootState, PoolAllocation, PoolError, PoolOperation, PoolPartition, PoolRequest, PoolState};

/// The lock file in the directory of a pool.
pub const POOL_LOCK: &str = "allocation.lock";
/// The directory of free partitions.
pub const POOL_FREE: &str = "free";
/// The directory of partitions that jobs have.
pub const POOL_ALLOCATED: &str = "allocated";

/// Returns the name of the pointer of a job.
#[must_use]
pub fn pointer_name(job_id: u32) -> String {
    format!("p{job_id}")
}

/// Returns the job of a pointer; none if the name is not that of a pointer.
#[must_use]
pub fn job_of_pointer(name: &str) -> Option<u32> {
    crate::error::decimal(name.strip_prefix('p')?)
}

/// Returns the text of a pointer.
#[must_use]
pub fn pointer_text(partitions: &[String]) -> String {
    partitions.iter().map(|name| format!("{name}\n")).collect()
}

/// Returns the partitions of a pointer: one a line. A line that is not a file name is left out.
///
/// ```
/// use ipu_slurm::{parse_pointer, pointer_text};
///
/// let partitions = parse_pointer("pt2_0\n../../etc/shadow\npt2_1\n");
/// assert_eq!(partitions, ["pt2_0", "pt2_1"]);
/// assert_eq!(pointer_text(&partitions), "pt2_0\npt2_1\n");
/// ```
#[must_use]
pub fn parse_pointer(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| is_file_name(line))
        .map(str::to_owned)
        .collect()
}

/// Returns whether a text is the name of a visible file in a directory, not a path.
#[must_use]
pub fn is_file_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('.')
        && !text.contains(['/', '\0'])
        && !text.contains(char::is_control)
}
