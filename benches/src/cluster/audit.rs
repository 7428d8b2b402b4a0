//! What was written to the API server, by whom: its own log of writes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;

/// Writes by who made them and of what, in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct Writes(pub BTreeMap<(String, String), u64>);

impl Writes {
    /// Where the log ends now.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn end(log: &Path) -> u64 {
        std::fs::metadata(log).expect("the audit log").len()
    }

    /// Counts what was written since the log ended at `from`. Leases are not counted, because nobody writes them for a job, and no
    /// reviews of tokens, which store nothing.
    ///
    /// # Panics
    ///
    /// If there is no log.
    #[must_use]
    pub fn since(log: &Path, from: u64) -> Self {
        let mut file = File::open(log).expect("the audit log");
        file.seek(SeekFrom::Start(from)).expect("its end then");
        let mut writes = Self::default();
        for line in BufReader::new(file).lines().map_while(Result::ok) {
            let Ok(event) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let about = &event["objectRef"];
            if about["resource"] == "leases" || about["resource"] == "tokenreviews" {
                continue;
            }
            let mut what = format!("{} {}", text(&event["verb"]), text(&about["resource"]));
            if let Some(part) = about["subresource"].as_str() {
                what = format!("{what}/{part}");
            }
            let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
            if code >= 400 {
                what = format!("{what} (answered {code})");
            }
            *writes.0.entry((who(&event), what)).or_default() += 1;
        }
        writes
    }

    /// How many `who` made.
    #[must_use]
    pub fn by(&self, who: &str) -> u64 {
        let of = |((by, _), count): (&(String, String), &u64)| (by == who).then_some(*count);
        self.0.iter().filter_map(of).sum()
    }
}

/// The account of a service, or else the program.
fn who(event: &Value) -> String {
    let user = event["user"]["username"].as_str().unwrap_or_default();
    if let Some(account) = user.strip_prefix("system:serviceaccount:ipu-operator-system:") {
        return account.to_owned();
    }
    let agent = event["userAgent"].as_str().unwrap_or_default();
    let program = agent.split(['/', ' ']).next().unwrap_or_default();
    if program.is_empty() {
        "the benchmark".to_owned()
    } else {
        program.to_owned()
    }
}
