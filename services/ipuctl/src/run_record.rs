//! Records of runs in the state directory, for `ipuctl list`.

use std::fs;
use std::io;
use std::path::Path;

use ipu_core::{PartitionId, Timestamp};
use ipu_proxy_client::PartitionDocument;
use serde::{Deserialize, Serialize};

use crate::state_dir::{StateDir, write_file};

/// Owner kind of partitions of `ipuctl run`.
pub(crate) const OWNER_KIND: &str = "HostRun";

/// Lease at a proxy of another host, in seconds: a run that is killed keeps its partitions that long, and one
/// that is cut off from the proxy loses them after it.
pub(crate) const LEASE_SECONDS: u32 = 300;

/// Maximum number of records of finished runs.
const MAX_FINISHED: usize = 50;

/// A run of this user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunRecord {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `Pending`, `Queued`, `Creating`, `Running`, `Completed`, `Failed`, `Interrupted` or `Killed`.
    pub(crate) phase: String,
    pub(crate) partitions: Vec<PartitionId>,
    pub(crate) started: Timestamp,
    /// Exit code of `ipuctl run`; none for an active or killed run.
    pub(crate) exit_code: Option<u8>,
    /// URL of the proxy with the partitions; none for the local server.
    pub(crate) proxy: Option<String>,
}

impl RunRecord {
    /// Returns whether the run owns a partition or a request.
    pub(crate) fn owns(&self, partition: &PartitionDocument) -> bool {
        let owner = partition.owner.as_ref();
        owner.is_some_and(|owner| owner.kind == OWNER_KIND && owner.uid == self.uid)
    }

    /// Writes the record of an active run into the directory of the run.
    pub(crate) fn write_active(&self, directory: &Path) -> io::Result<()> {
        write_file(&directory.join("run.json"), 0o600, &serde_json::to_vec(self)?)
    }

    /// Returns the record of the run with this directory.
    pub(crate) fn read_active(directory: &Path) -> Option<Self> {
        read(&directory.join("run.json"))
    }

    /// Writes the record of a finished run, and removes the oldest records.
    pub(crate) fn write_finished(&self, state: &StateDir) -> io::Result<()> {
        let history = state.create_history_dir()?;
        write_file(
            &history.join(format!("{}.json", self.uid)),
            0o600,
            &serde_json::to_vec(self)?,
        )?;
        for old in Self::read_finished(state).iter().skip(MAX_FINISHED) {
            // A concurrent run may have removed it.
            fs::remove_file(history.join(format!("{}.json", old.uid))).ok();
        }
        Ok(())
    }

    /// Returns the records of finished runs, newest first.
    pub(crate) fn read_finished(state: &StateDir) -> Vec<Self> {
        let files = state
            .create_history_dir()
            .and_then(fs::read_dir)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let mut records: Vec<Self> = files.filter_map(|file| read(&file.path())).collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.started));
        records
    }
}

fn read(path: &Path) -> Option<RunRecord> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_records_of_finished_runs_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(Some(home.path())).unwrap();
        for number in 0..MAX_FINISHED as u64 + 3 {
            let record = RunRecord {
                uid: number.to_string(),
                namespace: "root".to_owned(),
                name: "job".to_owned(),
                phase: "Completed".to_owned(),
                partitions: vec![PartitionId::new("p").unwrap()],
                started: Timestamp::from_millis(number),
                exit_code: Some(0),
                proxy: None,
            };
            record.write_finished(&state).unwrap();
        }
        let records = RunRecord::read_finished(&state);
        assert_eq!(records.len(), MAX_FINISHED);
        assert_eq!(records[0].uid, (MAX_FINISHED + 2).to_string());
        assert_eq!(records.last().unwrap().uid, "3");
    }
}
