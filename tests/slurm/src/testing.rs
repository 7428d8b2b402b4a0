//! Beds for tests, which skip themselves without root or the packages.

use std::env;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::bed::Bed;
use crate::concurrency_limit::BedSlot;
use crate::options::BedOptions;
use crate::support::check_support;

/// Returns a bed of the test's own, with all nodes idle. At most four run at a time per process, and a caller
/// waits for a free slot. Prints a message and returns `None` if this machine cannot run Slurm outside CI.
///
/// # Panics
///
/// If this machine cannot run Slurm and `CI` is set, or if the bed does not start.
#[must_use]
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
pub fn bed(test: &str, options: BedOptions) -> Option<Bed> {
    if let Err(error) = check_support(&options) {
        assert!(
            env::var_os("CI").is_none(),
            "{test}: {error}, and CI requires this test"
        );
        println!("skipped: {test}: {error}");
        return None;
    }
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let slot = BedSlot::wait();
    let root = env::temp_dir().join("ipu-test-slurm");
    sweep(&root);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = root.join(format!("{}-{number}", std::process::id()));
    match Bed::start(&directory, &options, Some(slot)) {
        Ok(bed) => Some(bed),
        Err(error) => panic!("{test}: {error}"),
    }
}

/// Removes the files of test processes that have ended.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(owner).exists() {
            // Another process may sweep at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
