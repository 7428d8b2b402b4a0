//! `slurm.conf` with the files that it includes. The tables hold what Slurm 22.05 to 26.05 does.

use ipu_slurm::conf::{SlurmConf, SlurmLine};
use proptest::prelude::*;

/// Reads the first of these files, with the others as its included files.
fn read(files: &[(&str, &str)]) -> SlurmConf {
    let source = |path: &str| {
        let mut found = files.iter().filter(|(name, _)| *name == path);
        let found = found.next().ok_or_else(|| "No such file".to_owned())?;
        Ok(vec![(found.0.to_owned(), found.1.to_owned())])
    };
    SlurmConf::read(files[0].0, files[0].1, &source)
}

fn values<'a>(lines: &'a [SlurmLine<'_>], key: &str) -> Vec<(&'a str, &'a str)> {
    let value = |line: &'a SlurmLine<'_>| line.get(key).map_or("", |setting| setting.value());
    lines
        .iter()
        .map(|line| (line.name.value(), value(line)))
        .collect()
}

#[test]
fn a_line_is_read_as_slurm_reads_it() {
    for (text, expected) in [
        ("TaskProlog=/a\n", Some("/a")),
        ("taskprolog = /a # comment\r\n", Some("/a")),
        ("\tTASKPROLOG=\t/a", Some("/a")),
        ("#TaskProlog=/a\n", None),
        ("XTaskProlog=/a\nTaskPrologX=/b\nTask Prolog=/c\n", None),
        ("TaskProlog=\"/a b\" # comment", Some("/a b")),
        ("TaskProlog=\"/a", Some("\"/a")),
        ("TaskProlog=\"/a\"b", Some("\"/a\"b")),
        ("TaskProlog=\"\"\n", Some("")),
        ("TaskProlog=/a\\#b#c", Some("/a#b")),
        ("TaskProlog=/a\\\\\nX=1", Some("/a\\")),
        ("TaskProlog=/a\\\nb\n", Some("/ab")),
        ("TaskProlog=/a\\ \r\nb\r\n", Some("/ab")),
        ("TaskProlog=/a # comment \\\nX=1", Some("/a")),
        ("TaskProlog \\\n = \\\n /a", Some("/a")),
        ("TaskProlog=/a\nTaskProlog=/b", Some("/b")),
        ("NodeName=n TaskProlog=/a", None),
        ("TaskProlog", None),
    ] {
        assert_eq!(
            SlurmConf::parse("f", text).value("TaskProlog"),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn included_files_are_read_at_their_place() {
    let conf = read(&[
        (
            "slurm.conf",
            "ClusterName=Lab\nKillWait=1\ninclude  conf.d/a.conf # more\nInclude %c.conf\nX=last\n",
        ),
        (
            "conf.d/a.conf",
            "KillWait=2\nInclude b.conf\nInclude c.conf\nX=a\n",
        ),
        ("b.conf", "B=top\n"),
        ("conf.d/b.conf", "B=sibling\n"),
        ("conf.d/c.conf", "C=sibling\n"),
        ("lab.conf", "KillWait=3\nClusterName=Other\n"),
    ]);
    for (key, expected) in [
        ("KillWait", Some("3")),
        ("X", Some("last")),
        ("B", Some("top")),
        ("C", Some("sibling")),
        ("Y", None),
    ] {
        assert_eq!(conf.value(key), expected, "{key}");
    }
    assert_eq!(conf.cluster_name().as_deref(), Some("other"));
    assert_eq!(conf.unread(), []);
}

#[test]
fn an_include_that_cannot_be_read_is_named_with_its_line() {
    for (text, place) in [
        (
            "X=1\nInclude absent.conf\n",
            "slurm.conf:2:9: Include = absent.conf: cannot be read: No such file",
        ),
        (
            "Include a.conf\n",
            "a.conf:1:9: Include = slurm.conf: cannot be read: a file includes itself",
        ),
        (
            "Include %c.conf\nClusterName=a",
            "slurm.conf:1:9: Include = %c.conf: cannot be read: %c stands for",
        ),
    ] {
        let conf = read(&[("slurm.conf", text), ("a.conf", "Include slurm.conf\n")]);
        let errors = conf.unread();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].to_string().starts_with(place), "{}", errors[0]);
    }
}

#[test]
fn files_that_include_each_other_many_times_are_read_in_bounded_time() {
    let names: Vec<String> = (0..40).map(|index| format!("f{index}")).collect();
    let texts: Vec<String> = (1..41)
        .map(|next| format!("Include f{next}\n").repeat(2))
        .collect();
    let files: Vec<(&str, &str)> = names
        .iter()
        .zip(&texts)
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    assert!(!read(&files).unread().is_empty());
}

#[test]
fn defaults_hold_for_the_lines_below_them() {
    let conf = read(&[
        (
            "slurm.conf",
            "NodeName=n0\nNodeName=DEFAULT CPUs=1 Gres=vipu:2:2\nnodename=n1 cpus=4\nInclude nodes.conf\n\
             NodeName=default Gres=\nNodeName=n4\nNodeName=DEFAULT Gres=\"\"\nNodeName=n5\n",
        ),
        (
            "nodes.conf",
            "NodeName=n2 Gres = gpu:1 \\\n State=UNKNOWN\nNodeName=DEFAULT CPUs=8\nNodeName=n3\n",
        ),
    ]);
    let lines = conf.lines("NodeName");
    assert_eq!(
        values(&lines, "Gres"),
        [
            ("n0", ""),
            ("n1", "vipu:2:2"),
            ("n2", "gpu:1"),
            ("n3", "vipu:2:2"),
            ("n4", ""),
            ("n5", "")
        ]
    );
    assert_eq!(
        values(&lines, "CPUs"),
        [
            ("n0", ""),
            ("n1", "4"),
            ("n2", "1"),
            ("n3", "8"),
            ("n4", "8"),
            ("n5", "8")
        ]
    );
}

proptest! {
    #[test]
    fn any_text_is_read(text in "(Include |NodeName=|DEFAULT|[=# \"a\\\\\r]|\n|\\PC){0,60}") {
        let conf = read(&[("slurm.conf", &text), ("a", "Include slurm.conf\nX=1\n")]);
        let _ = (conf.lines("NodeName"), conf.cluster_name());
    }
}
