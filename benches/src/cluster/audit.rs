//! Write counts from the API server's audit log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;

/// Number of writes by account and operation, in name order.
#[derive(Clone, Debug, Default)]
pub struct Writes(pub BTreeMap<(String, String), u64>);

impl Writes {
    /// Returns the current length of the log.
    ///
    /// # Panics
    ///
    /// If the log does not exist.
    #[must_use]
    pub fn end(log: &Path) -> u64 {
        std::fs::metadata(log).expect("the audit log").len()
    }

    /// Counts the writes since the log had length `from`. Excludes leases, which are not written per job,
    /// and token reviews, which store nothing.
    ///
    /// # Panics
    ///
    /// If the log does not exist.
    #[must_use]
    pub fn since(log: &Path, from: u64) -> Self {
        let mut file = File::open(log).expect("the audit log");
        file.seek(SeekFrom::Start(from)).expect("seek to the earlier end");
        let mut writes = Self::default();
        for line in BufReader::new(file).lines().map_while(Result::ok) {
            let Ok(event) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let object = &event["objectRef"];
            if object["resource"] == "leases" || object["resource"] == "tokenreviews" {
                continue;
            }
            let mut operation = format!("{} {}", text(&event["verb"]), text(&object["resource"]));
            if let Some(subresource) = object["subresource"].as_str() {
                operation = format!("{operation}/{subresource}");
            }
            let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
            if code >= 400 {
                operation = format!("{operation} (status {code})");
            }
            *writes.0.entry((account(&event), operation)).or_default() += 1;
        }
        writes
    }

    /// Returns the number of writes of an account.
    #[must_use]
    pub fn count_of(&self, account: &str) -> u64 {
        let count_of_account =
            |((writer, _), count): (&(String, String), &u64)| (writer == account).then_some(*count);
        self.0.iter().filter_map(count_of_account).sum()
    }
}

/// Returns the service account, or else the program.
fn account(event: &Value) -> String {
    let user = event["user"]["username"].as_str().unwrap_or_default();
    if let Some(name) = user.strip_prefix("system:serviceaccount:ipu-operator-system:") {
        return name.to_owned();
    }
    let agent = event["userAgent"].as_str().unwrap_or_default();
    let program = agent.split(['/', ' ']).next().unwrap_or_default();
    if program.is_empty() {
        "the benchmark".to_owned()
    } else {
        program.to_owned()
    }
}
