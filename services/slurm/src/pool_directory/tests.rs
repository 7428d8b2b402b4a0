//! Crashes, boots and concurrent jobs on a directory.

use ipu_core::IpuCount;
use ipu_slurm::PoolRequest;

use super::*;

const ANY: PoolRequest = PoolRequest { size: None, count: 1 };

/// Returns a directory with these partitions of two IPUs.
fn pool(partitions: &[&str]) -> (tempfile::TempDir, PoolDirectory) {
    let root = tempfile::tempdir().unwrap();
    for directory in [POOL_FREE, POOL_ALLOCATED] {
        fs::create_dir(root.path().join(directory)).unwrap();
    }
    let size = IpuCount::try_from(2).ok();
    let file = PoolFile {
        size,
        ..PoolFile::default()
    };
    for partition in partitions {
        fs::write(root.path().join(POOL_FREE).join(partition), file.render()).unwrap();
    }
    let directory = at_boot(root.path(), "first");
    (root, directory)
}

fn at_boot(root: &Path, boot_id: &str) -> PoolDirectory {
    PoolDirectory {
        root: root.to_owned(),
        node: "n1".to_owned(),
        boot_id: boot_id.to_owned(),
        refusals: root.join(".refusals/node"),
        run: None,
        lock_timeout: LOCK_TIMEOUT,
    }
}

/// Allocates a partition, killed after this number of steps.
fn allocate(directory: &PoolDirectory, job_id: u32, killed_after: usize) {
    let mut locked = directory.lock().unwrap();
    let steps = locked.state.allocate(job_id, &ANY).unwrap().steps;
    let taken = steps.len().min(killed_after);
    locked.take(&steps[..taken]).unwrap();
}

fn release(directory: &PoolDirectory, job_id: u32, killed_after: usize) {
    let mut locked = directory.lock().unwrap();
    let steps = locked.state.release(job_id);
    let taken = steps.len().min(killed_after);
    locked.take(&steps[..taken]).unwrap();
}

#[test]
fn a_crash_between_any_two_steps_is_repaired() {
    for killed_after in 0..=2 {
        let (_root, directory) = pool(&["a", "b"]);
        allocate(&directory, 7, killed_after);
        let state = directory.lock().unwrap().state.clone();
        let expected: &[&str] = if killed_after == 0 { &[] } else { &["a"] };
        let names: Vec<&str> = state.allocated.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, expected, "{killed_after}");
        assert_eq!(state, directory.read_state().unwrap());

        release(&directory, 7, killed_after);
        let state = directory.lock().unwrap().state.clone();
        let is_free = killed_after > 0 || expected.is_empty();
        assert_eq!(state.free.len() == 2, is_free, "{killed_after}");
        assert_eq!(state, directory.read_state().unwrap());
    }
}

#[test]
fn after_a_boot_everything_is_free() {
    let (root, directory) = pool(&["a", "b"]);
    allocate(&directory, 7, usize::MAX);
    directory.set_reason(8, Some("none was free")).unwrap();
    let directory = at_boot(root.path(), "second");
    let state = directory.lock().unwrap().state.clone();
    assert_eq!((state.free.len(), state.pointers.len()), (2, 0));
    assert_eq!(directory.reason(8).unwrap(), None);
}

#[test]
fn concurrent_jobs_never_have_the_same_partition() {
    let names: Vec<String> = (0..4).map(|n| format!("p{n}")).collect();
    let (_root, directory) = pool(&names.iter().map(String::as_str).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for job_id in 1..=4 {
            let directory = &directory;
            scope.spawn(move || {
                for _ in 0..50 {
                    allocate(directory, job_id, usize::MAX);
                    let state = directory.lock().unwrap().state.clone();
                    let own = &state.pointers[&job_id][0];
                    assert_eq!(state.users_of(own).collect::<Vec<_>>(), [job_id]);
                    release(directory, job_id, usize::MAX);
                }
            });
        }
    });
    assert_eq!(directory.lock().unwrap().state.free.len(), 4);
}

#[test]
fn a_lock_that_another_process_holds_is_awaited_for_a_limited_time() {
    let (_root, mut directory) = pool(&["a"]);
    directory.lock_timeout = Duration::from_millis(50);
    let holder = directory.clone();
    let held = holder.lock().unwrap();
    let error = directory.lock().unwrap_err().to_string();
    assert!(
        error.contains("allocation.lock for 0 s; find it with fuser -v"),
        "{error}"
    );
    drop(held);
    directory.lock().unwrap();
}

#[test]
fn a_directory_that_others_can_change_is_refused_and_not_written() {
    let (root, directory) = pool(&["a"]);
    for name in ["", POOL_FREE, POOL_ALLOCATED] {
        let path = root.path().join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
        let error = directory.lock().unwrap_err();
        assert!(
            matches!(error, PoolDirectoryError::Insecure(_)),
            "{name}: {error}"
        );
        directory.set_reason(7, Some("others may write")).unwrap();
        assert!(!root.path().join(REASONS_DIR).exists());
        assert_eq!(directory.reason(7).unwrap().as_deref(), Some("others may write"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        directory.set_reason(7, None).unwrap();
        assert_eq!(directory.reason(7).unwrap(), None);
    }
    assert!(!root.path().join(POOL_LOCK).exists());
    fs::remove_dir(root.path().join(POOL_ALLOCATED)).unwrap();
    std::os::unix::fs::symlink("free", root.path().join(POOL_ALLOCATED)).unwrap();
    assert!(matches!(
        directory.lock().unwrap_err(),
        PoolDirectoryError::Insecure(_)
    ));
}

#[test]
fn a_directory_that_another_node_has_is_refused_and_not_written() {
    let (root, first) = pool(&["a", "b"]);
    allocate(&first, 7, usize::MAX);
    let second = PoolDirectory {
        node: "n2".to_owned(),
        ..at_boot(root.path(), "of another node")
    };
    for error in [second.lock().unwrap_err(), second.check_owner().unwrap_err()] {
        let error = error.to_string();
        assert!(error.contains("belongs to node n1, not n2; add %n"), "{error}");
    }
    second.set_reason(7, Some("of another node")).unwrap();
    assert_eq!(second.reason(7).unwrap().as_deref(), Some("of another node"));
    assert!(!root.path().join(REASONS_DIR).exists());
    let state = first.lock().unwrap().state.clone();
    assert_eq!((state.free.len(), state.pointers.len()), (1, 1));
}

#[test]
fn unfinished_files_of_a_crash_are_removed() {
    let (root, directory) = pool(&["a"]);
    let unfinished = [".p7.new", ".boot_id.new", "free/.b.new"];
    for name in unfinished {
        fs::write(root.path().join(name), "").unwrap();
    }
    drop(directory.lock().unwrap());
    for name in unfinished {
        assert!(!root.path().join(name).exists(), "{name}");
    }
    assert_eq!(directory.lock().unwrap().state.free.len(), 1);
}
