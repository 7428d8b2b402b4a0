//! Checker of a [history](super::history): knows nothing of the run but its file.
//!
//! 1. [`holds`]: no IPU is granted to two owners whose certain holds overlap.
//! 2. [`listings`]: no controller loses, moves or resets a partition during a certain hold.
//! 3. [`register`]: the answers for each partition id are linearizable.

mod holds;
mod listings;
mod register;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use super::history::{Call, Death, Listing, Record, StateLoss};

/// Records of a history by kind.
#[derive(Default)]
struct Records {
    calls: Vec<Call>,
    listings: Vec<Listing>,
    state_losses: Vec<StateLoss>,
    deaths: Vec<Death>,
}

/// Result of a check.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) calls: usize,
    pub(super) listings: usize,
    pub(super) holds: usize,
    pub(super) ids: usize,
    /// One sentence for each violation.
    pub(super) violations: Vec<String>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "checked {} calls of {} ids, {} holds and {} listings: {} violations",
            self.calls,
            self.ids,
            self.holds,
            self.listings,
            self.violations.len()
        )
    }
}

/// Checks the history in the file `path`.
pub(super) fn check_file(path: &Path) -> Report {
    let lines = BufReader::new(File::open(path).unwrap()).lines();
    check(lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()))
}

fn check(history: impl Iterator<Item = Record>) -> Report {
    let mut records = Records::default();
    for record in history {
        match record {
            Record::Call(call) => records.calls.push(call),
            Record::Listing(listing) => records.listings.push(listing),
            Record::StateLoss(loss) => records.state_losses.push(loss),
            Record::Death(death) => records.deaths.push(death),
        }
    }
    let holds = holds::certain_holds(&records.calls, &records.deaths);
    let mut violations = holds::overlaps(&holds);
    violations.extend(listings::contradictions(
        &records.listings,
        &holds,
        &records.state_losses,
    ));
    let (ids, unexplained) = register::unexplained_answers(&records.calls, &records.state_losses);
    violations.extend(unexplained);
    Report {
        calls: records.calls.len(),
        listings: records.listings.len(),
        holds: holds.len(),
        ids,
        violations,
    }
}
