//! Tests of the files of a run.

use super::*;

const NAME: &str = "c-7.env";

fn active(run: &str, hook: &str) -> RunFile {
    RunFile {
        hook: hook.to_owned(),
        grant: Some(Grant {
            start: RunStart::from_uid(run).unwrap(),
            partition: PartitionId::new("p-slurm-7-0-abc").unwrap(),
            ipus: 4,
            gcds: 1,
            variables: BTreeMap::from([("IPUOF_VIPU_API_HOST".to_owned(), "pod".to_owned())]),
        }),
    }
}

fn write_file(directory: &Path, file: &RunFile) {
    safe_file::replace(directory, NAME, &file.render(), true).unwrap();
}

#[test]
fn a_hook_takes_over_the_file_of_an_earlier_one_as_a_marker() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let taken_over = |hook: &str| take_over(path, NAME, hook).unwrap().1;
    assert_eq!(taken_over("1-1"), None);
    let first = RunFile::read(&path.join(NAME)).unwrap().unwrap();
    let start = |uid: &str| RunStart::from_uid(uid).unwrap();
    assert!(first.active().is_none() && first.proves_unused(&start("7.100")));
    let earlier = active("7.100.1", "2-2");
    write_file(path, &earlier);
    fs::write(path.join("p-slurm-7-0-abc.conf"), "").unwrap();
    assert_eq!(taken_over("3-3"), Some(earlier.clone()));
    let marker = RunFile::read(&path.join(NAME)).unwrap().unwrap();
    assert_eq!(marker, earlier.marker("3-3"));
    assert_eq!(fs::read_dir(path).unwrap().count(), 1);
    for (file, uid, is_unused) in [
        (&earlier, "7.100.2", false),
        (&marker, "7.100.2", true),
        (&marker, "7.100.1", false),
        (&marker, "7.100", false),
        // The file of another run proves nothing.
        (&marker, "7.200", false),
    ] {
        assert_eq!(file.proves_unused(&start(uid)), is_unused, "{uid}");
    }
    fs::write(path.join(NAME), "unreadable").unwrap();
    assert_eq!(taken_over("4-4"), None);
    assert!(is_of_hook(path, NAME, "4-4").unwrap());
}

#[test]
fn a_rendered_file_parses_to_itself_and_a_value_cannot_add_a_variable() {
    let file = active("7.100", "1-1");
    assert_eq!(RunFile::parse(&file.render()), Some(file.clone()));
    let mut forged = file;
    let value = "a\nIPUOF_VIPU_API_PARTITION_ID=other".to_owned();
    let grant = forged.grant.as_mut().unwrap();
    grant.variables.insert("IPUOF_X".into(), value);
    assert!(!forged.render().contains("other"));
    for text in [
        "IPUOF_VIPU_API_HOST=pod\n",
        "",
        "# ipu-slurm 1 hook=1-1\nIPUOF_A=b\n",
    ] {
        assert_eq!(RunFile::parse(text), None, "{text}");
    }
}

#[test]
fn a_hook_changes_no_file_of_a_later_hook() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (old, new) = (active("7.100", "1-1"), active("7.200", "2-2"));
    let config = serde_json::from_value(serde_json::json!({
        "id": "p-slurm-7-0-abc", "attempt": 0, "reconfigurable": false, "serverVersion": "1", "files": [],
    }));
    let config: IpuofConfigDocument = config.unwrap();
    assert!(
        !write(path, NAME, &old, &config).unwrap(),
        "the marker was removed"
    );
    write_file(path, &new);
    assert!(!write(path, NAME, &old, &config).unwrap());
    assert!(!end(path, NAME, &old).unwrap());
    let partition = &old.grant.as_ref().unwrap().partition;
    let old_start = &old.grant.as_ref().unwrap().start;
    remove_start(path, NAME, old_start, partition).unwrap_or_else(|failure| panic!("{}", failure.0));
    assert_eq!(RunFile::read(&path.join(NAME)).unwrap(), Some(new.clone()));
    // The marker of a hook that is at work.
    write_file(path, &old.marker("3-3"));
    remove_start(path, NAME, old_start, partition).unwrap_or_else(|failure| panic!("{}", failure.0));
    assert!(is_of_hook(path, NAME, "3-3").unwrap());
}

#[test]
fn the_file_of_a_run_ends_with_its_only_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let only = active("7.200", "1-1");
    let later = active("7.200.1", "1-1");
    for (file, left) in [
        (only.clone(), None),
        (later.clone(), Some(later.marker("1-1"))),
        (only.marker("1-1"), Some(only.marker("1-1"))),
        (
            RunFile {
                grant: None,
                ..only.clone()
            },
            None,
        ),
    ] {
        write_file(path, &file);
        fs::write(path.join("p-slurm-7-0-abcd.conf"), "").unwrap();
        assert!(end(path, NAME, &file).unwrap());
        assert_eq!(RunFile::read(&path.join(NAME)).unwrap(), left);
        assert!(path.join("p-slurm-7-0-abcd.conf").exists());
    }
}

#[test]
fn a_configuration_without_the_file_of_its_run_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let own = [
        "p-slurm-7-0-abc.conf",
        "p-slurm-7-0-abc_gcd1.conf",
        ".p-slurm-7-0-abc.conf.new",
    ];
    for name in own.iter().chain(&["p-slurm-7-0-abcd.conf"]) {
        fs::write(directory.path().join(name), "").unwrap();
    }
    let Grant { start, partition, .. } = active("7.100", "1-1").grant.unwrap();
    remove_start(directory.path(), NAME, &start, &partition)
        .unwrap_or_else(|failure| panic!("{}", failure.0));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
