//! Tests of the files of a run.

use super::*;

fn file(run: &str) -> RunFile {
    RunFile {
        start: RunStart::from_uid(run).unwrap(),
        state: FileState::Active,
        used: None,
        left: Vec::new(),
        hook: "1-1".to_owned(),
        partition: PartitionId::new("p-slurm-7-0-abc").unwrap(),
        ipus: Some(4),
        gcds: 1,
        variables: BTreeMap::from([("IPUOF_VIPU_API_HOST".to_owned(), "pod".to_owned())]),
    }
}

fn write(directory: &Path, name: &str, file: &RunFile) {
    write_atomically(directory, name, &file.render()).unwrap();
}

#[test]
fn a_hook_takes_over_what_the_file_of_an_earlier_one_tells() {
    let directory = tempfile::tempdir().unwrap();
    let (path, name) = (directory.path(), "c-7.env");
    let first = RunFile {
        hook: "2-2".to_owned(),
        state: FileState::Undecided,
        variables: BTreeMap::new(),
        ..file("7.1764000009")
    };
    assert_eq!(take_over(path, name, &first).unwrap(), None);
    assert_eq!(RunFile::read(&path.join(name)).unwrap(), Some(first.clone()));
    for (state, used, taken_state, taken_used) in [
        (FileState::Active, None, FileState::Undecided, Some(1)),
        (FileState::Pending, Some(0), FileState::Pending, Some(0)),
        (FileState::Undecided, Some(2), FileState::Undecided, Some(2)),
    ] {
        let earlier = RunFile {
            state,
            used,
            ..file("7.1764000000.1")
        };
        write(path, name, &earlier);
        fs::write(path.join("p-slurm-7-0-abc.conf"), "").unwrap();
        assert_eq!(take_over(path, name, &first).unwrap(), Some(earlier.clone()));
        // A hook that is killed now leaves this.
        let taken = RunFile::read(&path.join(name)).unwrap().unwrap();
        assert_eq!((taken.state, taken.used), (taken_state, taken_used));
        assert_eq!((&taken.start, taken.hook.as_str()), (&earlier.start, "2-2"));
        assert_eq!(taken.variables, BTreeMap::new());
        assert_eq!(fs::read_dir(path).unwrap().count(), 1);
    }
    fs::write(path.join(name), "unreadable").unwrap();
    assert_eq!(take_over(path, name, &first).unwrap(), None);
    assert!(is_of_hook(path, name, "2-2").unwrap());
}

#[test]
fn a_file_that_another_hook_creates_meanwhile_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (path, name) = (directory.path(), "c-7.env");
    let of_hook = |number: u32| RunFile {
        hook: format!("{number}-1"),
        ..file("7.1764000000")
    };
    for round in 0..50 {
        let hooks = [of_hook(2 * round), of_hook(2 * round + 1)];
        let found: Vec<io::Result<Option<RunFile>>> = std::thread::scope(|scope| {
            let running = hooks
                .each_ref()
                .map(|hook| scope.spawn(|| take_over(path, name, hook)));
            running.map(|thread| thread.join().unwrap()).into()
        });
        let unopposed = found.iter().filter(|found| matches!(found, Ok(None))).count();
        assert_eq!(unopposed, 1, "{found:?}");
        remove(&path.join(name)).unwrap();
    }
}

#[test]
fn a_rendered_file_parses_to_itself() {
    let file = file("7.1764000000");
    assert_eq!(RunFile::parse(&file.render()), Some(file));
}

#[test]
fn a_file_carries_the_highest_start_that_tasks_may_have_used() {
    let active = file("7.1764000000.2");
    assert_eq!(active.highest_used(), Some(2));
    let undecided = RunFile {
        state: FileState::Undecided,
        used: active.highest_used(),
        ..file("7.1764000000")
    };
    assert_eq!(RunFile::parse(&undecided.render()), Some(undecided.clone()));
    assert_eq!(undecided.highest_used(), Some(2));
    let known: Vec<String> = undecided.known_starts().map(|start| start.to_string()).collect();
    assert_eq!(known, ["7.1764000000", "7.1764000000.1", "7.1764000000.2"]);
    let pending = RunFile {
        state: FileState::Pending,
        ..file("7.1764000000.1")
    };
    assert_eq!(pending.highest_used(), None);
    assert_eq!(pending.known_starts().count(), 2);
}

#[test]
fn a_file_of_an_earlier_version_is_active_if_it_has_variables() {
    let header = "# ipu-slurm 1 run=7.1764000000 partition=p-slurm-7-0-abc gcds=1\n";
    let state = |text: &str| RunFile::parse(text).unwrap().state;
    assert_eq!(state(header), FileState::Undecided);
    assert_eq!(
        state(&format!("{header}IPUOF_VIPU_API_HOST=pod\n")),
        FileState::Active
    );
}

#[test]
fn a_hook_replaces_its_own_file_and_not_that_of_a_later_hook() {
    let directory = tempfile::tempdir().unwrap();
    let (path, name) = (directory.path(), "c-7.env");
    let earlier = file("7.1764000000");
    let later = RunFile {
        hook: "2-2".to_owned(),
        state: FileState::Undecided,
        ..file("7.1764000001")
    };
    assert!(!replace_own(path, name, &earlier).unwrap(), "it was removed");
    write(path, name, &earlier);
    write(path, name, &later);
    assert!(!replace_own(path, name, &earlier).unwrap());
    assert!(!remove_own(path, name, &earlier).unwrap());
    assert_eq!(RunFile::read(&path.join(name)).unwrap(), Some(later.clone()));
    let active = RunFile {
        state: FileState::Active,
        ..later
    };
    assert!(replace_own(path, name, &active).unwrap());
    assert!(is_of_hook(path, name, &active.hook).unwrap());
    assert!(!is_of_hook(path, name, &earlier.hook).unwrap());
    assert_eq!(RunFile::read(&path.join(name)).unwrap(), Some(active.clone()));
    assert!(remove_own(path, name, &active).unwrap());
    assert_eq!(RunFile::read(&path.join(name)).unwrap(), None);
}

#[test]
fn a_value_cannot_add_a_variable() {
    let mut file = file("7.1764000000");
    let value = "a\nIPUOF_VIPU_API_PARTITION_ID=other".to_owned();
    file.variables.insert("IPUOF_X".into(), value);
    assert!(!file.render().contains("other"));
}

#[test]
fn a_file_without_the_header_is_not_read() {
    assert_eq!(RunFile::parse("IPUOF_VIPU_API_HOST=pod\n"), None);
    assert_eq!(RunFile::parse(""), None);
}

#[test]
fn the_files_of_another_run_are_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let old = file("7.1764000000");
    for new in [file("7.1764000001"), file("7.1764000000.1")] {
        write(directory.path(), "c-7.env", &new);
        remove_start(directory.path(), "c-7.env", &old.start, &old.partition).unwrap();
        assert!(directory.path().join("c-7.env").exists());
        remove_start(directory.path(), "c-7.env", &new.start, &new.partition).unwrap();
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_a_later_hook_writes_meanwhile_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, name) = (directory.path(), "c-7.env");
    let (old, new) = (file("7.1764000000"), file("7.1764000001"));
    for _ in 0..200 {
        write(path, name, &old);
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| remove_start(path, name, &old.start, &old.partition));
            write(path, name, &new);
            removal.join().unwrap().unwrap();
        });
        assert_eq!(RunFile::read(&path.join(name)).unwrap(), Some(new.clone()));
    }
    assert_eq!(fs::read_dir(path).unwrap().count(), 1);
}

#[test]
fn a_moved_file_of_another_start_comes_back_unless_there_is_a_newer_one() {
    let directory = tempfile::tempdir().unwrap();
    let (path, name) = (directory.path(), "c-7.env");
    let (old, new) = (file("7.1764000000"), file("7.1764000001"));
    write(path, name, &new);
    remove_moved(&path.join(name), &|file| file.start == old.start).unwrap();
    assert_eq!(RunFile::read(&path.join(name)).unwrap(), Some(new.clone()));
    remove_moved(&path.join(name), &|file| file.start == new.start).unwrap();
    remove_moved(&path.join(name), &|file| file.start == new.start).unwrap();
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn a_configuration_without_the_file_of_its_run_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let file = file("7.1764000000");
    let own = [
        "p-slurm-7-0-abc.conf",
        "p-slurm-7-0-abc_gcd1.conf",
        ".p-slurm-7-0-abc.conf.new",
    ];
    for name in own.iter().chain(&["p-slurm-7-0-abcd.conf"]) {
        fs::write(directory.path().join(name), "").unwrap();
    }
    remove_start(directory.path(), "c-7.env", &file.start, &file.partition).unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn removing_a_job_removes_its_configuration_and_unfinished_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = file("7.1764000000");
    for name in ["c-7.env", "p-slurm-7-0-abc.conf"] {
        write_atomically(directory.path(), name, &file.render()).unwrap();
        fs::write(unfinished_path(directory.path(), name), "").unwrap();
    }
    assert_eq!(remove_job(directory.path(), "c-7.env").unwrap(), Some(file));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_names_other_starts_outlives_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (path, name) = (directory.path(), "c-7.env");
    let starts = |list: &[&str]| -> Vec<RunStart> {
        list.iter().map(|uid| RunStart::from_uid(uid).unwrap()).collect()
    };
    for (run, used, left, known) in [
        ("7.200", None, &[] as &[&str], None),
        ("7.200", Some(0), &[], None),
        ("7.200.1", Some(0), &[], Some(&["7.200", "7.200.1"] as &[&str])),
        (
            "7.200",
            None,
            &["7.100", "7.100.1"],
            Some(&["7.200", "7.100", "7.100.1"]),
        ),
    ] {
        let ended = RunFile {
            used,
            left: starts(left),
            ..file(run)
        };
        assert_eq!(RunFile::parse(&ended.render()).as_ref(), Some(&ended));
        write(path, name, &ended);
        assert!(end_own(path, name, &ended).unwrap());
        let stays = RunFile::read(&path.join(name)).unwrap();
        let starts_after = stays.as_ref().map(|file| file.known_starts().collect());
        assert_eq!(starts_after, known.map(starts), "{run} {used:?} {left:?}");
        assert!(stays.is_none_or(|file| file.state == FileState::Undecided && file.variables.is_empty()));
    }
}
