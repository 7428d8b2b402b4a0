//! History of a crash run: one JSON document a line, appended while the run goes on. The
//! [checker](super::checker) reads nothing else.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Microseconds since the start of the run, on its one monotonic clock.
pub(super) type Micros = u64;

/// One line of the history.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub(super) enum Record {
    Call(Call),
    Listing(Listing),
    StateLoss(StateLoss),
    Death(Death),
}

/// Request of a client, and its answer if one arrived.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) id: String,
    /// Owner on whose behalf the request was sent.
    pub(super) owner: String,
    pub(super) attempt: u32,
    pub(super) invoked: Micros,
    /// The proxy refuses a request that it reads later.
    pub(super) not_after: Micros,
    /// Return of the answer, or end of the client's patience.
    pub(super) returned: Micros,
    pub(super) answer: Option<CallAnswer>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Operation {
    Put,
    Get,
    Delete,
}

/// Answer of the proxy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct CallAnswer {
    pub(super) status: u16,
    /// Code of a problem.
    pub(super) code: Option<String>,
    pub(super) state: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) attempt: Option<u32>,
    pub(super) controller: Option<String>,
    /// IPUs as `LINK-DOMAIN/IPU`.
    pub(super) ipus: BTreeSet<String>,
}

/// Partitions of a controller, as the controller itself reports them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Listing {
    pub(super) controller: String,
    pub(super) invoked: Micros,
    pub(super) returned: Micros,
    pub(super) partitions: Vec<ListedPartition>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct ListedPartition {
    pub(super) id: String,
    /// `CREATING`, `ACTIVE`, `RESETTING`, `REMOVING` or `ERROR`.
    pub(super) state: String,
    /// IPUs as `LINK-DOMAIN/IPU`.
    pub(super) ipus: BTreeSet<String>,
}

/// Restart of a controller without its state.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct StateLoss {
    pub(super) controller: String,
    pub(super) began: Micros,
    pub(super) ended: Micros,
}

/// End of the processes that use a partition, without a request.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Death {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) at: Micros,
}

/// History file of a run.
pub(super) struct History {
    started: Instant,
    path: PathBuf,
    file: Mutex<BufWriter<File>>,
}

impl History {
    pub(super) fn create(path: &Path) -> Self {
        Self {
            started: Instant::now(),
            path: path.to_owned(),
            file: Mutex::new(BufWriter::new(File::create(path).unwrap())),
        }
    }

    pub(super) fn now(&self) -> Micros {
        u64::try_from(self.started.elapsed().as_micros()).unwrap()
    }

    pub(super) fn append(&self, record: &Record) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::to_writer(&mut *file, record).unwrap();
        file.write_all(b"\n").unwrap();
    }

    /// Writes what is buffered, and returns the path of the file.
    pub(super) fn flush(&self) -> &Path {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.flush().unwrap();
        &self.path
    }
}
