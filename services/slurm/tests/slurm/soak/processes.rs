//! Processes of jobs that have a partition.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ipu_test_slurm::Bed;

/// A process: its id, and when it started.
type ProcessKey = (u32, String);

/// The job and the partition of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    pub(crate) job: String,
    pub(crate) partition: String,
}

/// The processes with a partition at one moment.
pub(crate) struct Processes(BTreeMap<ProcessKey, Use>);

impl Processes {
    /// Reads the environments of all processes of a bed.
    pub(crate) fn scan(bed: &Bed) -> Self {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(bed.path("/proc")).unwrap().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && let Some(use_of) = read_use(&entry.path())
                && let Some(start) = start_time(&entry.path())
            {
                found.insert((pid, start), use_of);
            }
        }
        Self(found)
    }

    /// Returns the uses of processes that ran all the time between two scans, once each.
    pub(crate) fn that_lasted(&self, later: &Self) -> Vec<Use> {
        let both = self
            .0
            .iter()
            .filter(|(key, found)| later.0.get(key) == Some(found));
        let mut uses: Vec<Use> = both.map(|(_, found)| found.clone()).collect();
        uses.sort();
        uses.dedup();
        uses
    }
}

/// Reads the variables of a process; none if it has ended or has no partition.
fn read_use(directory: &Path) -> Option<Use> {
    let environment = fs::read(directory.join("environ")).ok()?;
    let environment = String::from_utf8_lossy(&environment);
    let value = |name: &str| {
        let mut variables = environment.split('\0');
        variables.find_map(|variable| Some(variable.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    };
    Some(Use {
        job: value("SLURM_JOB_ID")?,
        partition: value("IPUOF_VIPU_API_PARTITION_ID")?,
    })
}

/// Returns the start time of a process, field 22 of its `stat`.
fn start_time(directory: &Path) -> Option<String> {
    let stat = fs::read_to_string(directory.join("stat")).ok()?;
    // The name of the program, in parentheses, may have blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(str::to_owned)
}
