//! The commands on configurations that Slurm accepts in many forms: several files, defaults, old names, other
//! separators, other encodings.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The files of a directory by name and bytes.
type Files<'a> = [(&'a str, &'a [u8])];

/// A model whose license is the only trace of IPUs in `slurm.conf`.
const VIPU_CONF: (&str, &[u8]) = (
    "vipu.conf",
    b"# f\xfcr alle\r\nProxy=http://127.0.0.1:18080\r\nProxyTokenFile=/token\r\nApiHost=ipu-ctrl\r\nIpuofDir=/ipuof\r\n",
);
const POD16: (&str, &[u8]) = ("pod16.conf", b"ApiHost=ipu-ctrl\nIpuofDir=/ipuof\n");
const HOOKS: &str = "PrologSlurmctld=/usr/lib/ipu-slurm/prolog-slurmctld\n\
                     EpilogSlurmctld=/usr/lib/ipu-slurm/epilog-slurmctld\n\
                     TaskProlog=/usr/lib/ipu-slurm/task-prolog\n\
                     PropagateResourceLimitsExcept=MEMLOCK\nLaunchParameters=use_interactive_step\n";

fn directory(files: &Files<'_>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    directory
}

fn ipu_slurm(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ipu-slurm"))
        .args(arguments)
        .env("SLURM_CONF", directory.join("slurm.conf"))
        .output()
        .unwrap()
}

/// Renders a configuration. Returns the result and the directory of the new files.
fn render(directory: &Path) -> (Output, PathBuf) {
    let output = directory.join("rendered");
    let to = format!("--output={}", output.display());
    let arguments = ["render", "--slurm-version=22.05", "--ipus=pod16=16", &to];
    (ipu_slurm(directory, &arguments), output)
}

/// Returns the findings of `check` on Slurm 24.11.
fn findings(files: &Files<'_>) -> Vec<String> {
    let directory = directory(files);
    let output = ipu_slurm(directory.path(), &["check", "--slurm-version=24.11"]);
    let text = [output.stdout, output.stderr].concat();
    let lines = String::from_utf8(text).unwrap();
    let findings: Vec<String> = lines.lines().map(str::to_owned).collect();
    let has_errors = findings.iter().any(|line| line.starts_with("error: "));
    assert_eq!(output.status.code(), Some(i32::from(has_errors)), "{findings:?}");
    findings
}

#[test]
fn a_right_configuration_has_no_finding_wherever_its_lines_are() {
    let hooks = HOOKS.as_bytes();
    let inline = format!("ClusterName=lab\n{HOOKS}Licenses=pod16:16\n");
    let lower = inline.to_lowercase().replace("memlock", "MEMLOCK");
    let windows = inline.replace('\n', "\r\n");
    let continued = inline.replace("=", " = \\\n  ");
    let layouts: [&Files<'_>; 8] = [
        &[("slurm.conf", inline.as_bytes())],
        &[("slurm.conf", lower.as_bytes())],
        &[("slurm.conf", windows.as_bytes())],
        &[("slurm.conf", continued.as_bytes())],
        &[
            (
                "slurm.conf",
                b"ClusterName=lab\nInclude hooks.conf\nInclude licenses.conf # ours\n",
            ),
            ("hooks.conf", hooks),
            ("licenses.conf", b"# \xa9 f\xfcr\nLicenses=pod16:16\n"),
        ],
        &[
            ("slurm.conf", b"ClusterName=Lab\ninclude conf.d/%c.conf\n"),
            (
                "conf.d/lab.conf",
                b"INCLUDE conf.d/hooks.conf\nInclude more.conf\n",
            ),
            ("conf.d/hooks.conf", hooks),
            ("conf.d/more.conf", b"Licenses=pod16:16\n"),
        ],
        &[
            (
                "slurm.conf",
                b"ClusterName=Lab\nInclude /etc/slurm/ipu-slurm-test/hooks.conf\nLicenses=pod16:16",
            ),
            ("ipu-slurm-test/hooks.conf", hooks),
        ],
        &[
            ("slurm.conf", b"Include hooks.conf\nLicenses=pod16:16"),
            ("hooks.conf", hooks),
        ],
    ];
    for (index, layout) in layouts.into_iter().enumerate() {
        let files = [layout, &[VIPU_CONF, POD16]].concat();
        assert_eq!(findings(&files), Vec::<String>::new(), "{index}");
    }
}

#[test]
fn a_pattern_is_followed_and_is_an_error() {
    let files = [
        ("slurm.conf", &b"ClusterName=lab\nInclude conf.d/*.conf\n"[..]),
        ("conf.d/a.conf", HOOKS.as_bytes()),
        ("conf.d/b.conf", b"Licenses=pod16:16\n"),
        ("conf.d/c.old", b"Licenses=pod16:8\n"),
        VIPU_CONF,
        POD16,
    ];
    assert_eq!(
        findings(&files),
        [
            "error: slurm.conf:2:9: Include = conf.d/*.conf: Slurm expands no pattern, and refuses the line; write \
          an Include for each file"
        ]
    );
}

#[test]
fn render_changes_the_file_that_has_a_line_and_keeps_every_other_byte() {
    let licenses = &b"# \xa9 f\xfcr alle\r\nLicenses=matlab:4;pod16:8,ansys:0 \\\r\n # Rest\r\n"[..];
    let files = [
        (
            "slurm.conf",
            &b"ClusterName=lab\r\nInclude hooks.conf\r\nInclude conf.d/licenses.conf\r\n"[..],
        ),
        ("hooks.conf", HOOKS.as_bytes()),
        ("conf.d/licenses.conf", licenses),
        VIPU_CONF,
        POD16,
    ];
    let directory = directory(&files);
    // An included file may have passwords.
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(directory.path().join("conf.d/licenses.conf"), private.clone()).unwrap();
    let (rendered, output) = render(directory.path());
    assert!(rendered.status.success(), "{rendered:?}");
    let written = fs::metadata(output.join("conf.d/licenses.conf")).unwrap();
    assert_eq!(written.permissions().mode() & 0o777, private.mode());
    let written = fs::read(output.join("conf.d/licenses.conf")).unwrap();
    let expected = b"# \xa9 f\xfcr alle\r\nLicenses=matlab:4;pod16:16,ansys:0 \\\r\n # Rest\r\n";
    assert_eq!(written, expected, "{}", String::from_utf8_lossy(&written));
    assert!(!output.join("hooks.conf").exists());
    let main = fs::read_to_string(output.join("slurm.conf")).unwrap();
    assert!(
        main.ends_with("# IPUs of jobs.\r\nJobSubmitPlugins=lua\r\n"),
        "{main}"
    );
}

#[test]
fn render_writes_nothing_over_a_file_that_it_cannot_read() {
    let outside = directory(&[("licenses.conf", b"Licenses=matlab:4,pod16:8\n")]);
    let path = outside.path().join("licenses.conf");
    let text = format!(
        "ClusterName=lab\n{HOOKS}JobSubmitPlugins=lua\nInclude {}\n",
        path.display()
    );
    let directory = directory(&[("slurm.conf", text.as_bytes()), VIPU_CONF, POD16]);
    // The file is not in the directory.
    let (rendered, output) = render(directory.path());
    let lines = String::from_utf8(rendered.stderr).unwrap();
    let by_hand = format!("note: {} is not in ", path.display());
    assert!(rendered.status.success() && lines.contains(&by_hand), "{lines}");
    assert_eq!(fs::read(&path).unwrap(), b"Licenses=matlab:4,pod16:8\n");
    assert!(output.join("ipu_limits.lua").exists() && !output.join("slurm.conf").exists());

    fs::remove_dir_all(&output).unwrap();
    fs::remove_file(&path).unwrap();
    let (refused, _) = render(directory.path());
    let lines = String::from_utf8(refused.stderr).unwrap();
    let unread = format!(
        "error: slurm.conf:8:9: Include = {}: cannot be read: No such file",
        path.display()
    );
    for expected in [
        unread.as_str(),
        "Licenses is absent: Slurm counts the IPUs of a model as licenses; write Licenses=pod16:16, unless an \
         included file that cannot be read has Licenses\n",
        "error: nothing is written",
    ] {
        assert!(lines.contains(expected), "{lines}");
    }
    assert!(refused.status.code() == Some(1) && !output.exists());
}

#[test]
fn a_mistake_in_the_resources_of_a_node_stops_only_its_pool() {
    let pool = tempfile::tempdir().unwrap();
    let vipu_conf = format!("# f\u{fc}r\nPoolDir={}/%n\n", pool.path().display());
    let nodes = b"NodeName=DEFAULT Gres=gpu:1,vipu:2:2\nNodeName=n[1-2]\nNodeName=n3 Gres=gpu:1,vipu:3:1\n\
                  NodeName=n4 Gres=gpu:x:y:z\nNodeName=n[ Gres=vipu:2:1\n";
    let files: [(&str, &[u8]); 3] = [
        ("slurm.conf", b"Include nodes.conf\nClusterName=lab\n"),
        ("nodes.conf", nodes),
        ("vipu.conf", vipu_conf.as_bytes()),
    ];
    let directory = directory(&files);
    for (node, error) in [
        ("n1", None),
        ("n2", None),
        (
            "n3",
            Some("nodes.conf:3:24: Gres = vipu:3:1: a size is a power of two"),
        ),
        (
            "n5",
            Some("nodes.conf:5:10: NodeName = n[: a bracket is not closed"),
        ),
    ] {
        for name in ["free", "allocated"] {
            fs::create_dir_all(pool.path().join(node).join(name)).unwrap();
        }
        let output = ipu_slurm(directory.path(), &["pool", "list", "--node", node]);
        let lines = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), error.is_none(), "{node}: {lines}");
        assert!(error.is_none_or(|error| lines.contains(error)), "{node}: {lines}");
    }
}
