//! Rendered configurations.

mod guide;
mod mistakes;
mod properties;

use std::fs;
use std::path::{Path, PathBuf};

use ipu_slurm::conf::{HostMap, SlurmConf};
use ipu_slurm::render::{RenderInput, RenderOptions, Rendered, Severity, render};

/// A `slurm.conf` with the line of the Slurm guide §8.5.4.
const SLURM_CONF: &str = "ClusterName=pod\nInclude v-ipu-plugin.conf\n";
const VIPU_CONF: &str = "ApiHost=ipu-pod64-001\nIpuofDir=/home/ipuof\nProxy=http://127.0.0.1:8080\n";
const NODE: &str = "NodeName=n[1-2] Gres=vipu:pod64:no_consume:64\n";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(data(name)).expect("read the data")
}

/// Reads a `slurm.conf` whose included files are these.
fn conf(text: &str, included: &[(&str, &str)]) -> SlurmConf {
    SlurmConf::read("slurm.conf", text, &|path| {
        let mut found = included.iter().filter(|(name, _)| *name == path);
        let (name, text) = found.next().ok_or("No such file")?;
        Ok(vec![((*name).to_owned(), (*text).to_owned())])
    })
}

/// Returns the input with a `slurm.conf`, a model `pod64`, and Slurm 24.11.
fn input(slurm_conf: &str) -> RenderInput<'static> {
    RenderInput {
        version: "24.11".parse().expect("a version"),
        slurm_conf: conf(slurm_conf, &[]),
        vipu_conf: ("vipu.conf", VIPU_CONF),
        models: &[("pod64", VIPU_CONF)],
        host_map: None,
        gres_conf: "",
        plugstack_conf: "",
        options: RenderOptions::default(),
    }
}

fn file<'a>(rendered: &'a Rendered, name: &str) -> Option<&'a str> {
    let found = rendered.files.iter().find(|(known, _)| known == name);
    found.map(|(_, text)| text.as_str())
}

fn findings(rendered: &Rendered) -> Vec<String> {
    rendered.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_rendered_configuration_renders_to_itself() {
    let plugin = read("conf/guide-v-ipu-plugin.conf");
    let mut first_input = input("");
    first_input.slurm_conf = conf(SLURM_CONF, &[("v-ipu-plugin.conf", &plugin)]);
    let first = render(&first_input).unwrap();
    let mut second_input = first_input.clone();
    let plugin = file(&first, "v-ipu-plugin.conf").unwrap();
    let slurm_conf = file(&first, "slurm.conf").unwrap();
    second_input.slurm_conf = conf(slurm_conf, &[("v-ipu-plugin.conf", plugin)]);
    let vipu_conf = file(&first, "vipu.conf").unwrap();
    second_input.vipu_conf = ("vipu.conf", vipu_conf);
    second_input.gres_conf = file(&first, "gres.conf").unwrap();
    second_input.plugstack_conf = file(&first, "plugstack.conf").unwrap();
    let second = render(&second_input).unwrap();
    assert_eq!(findings(&second), Vec::<String>::new());
    // The limits are written each time: this function does not read them.
    let names: Vec<&str> = second.files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["ipu_limits.lua"]);
}

#[test]
fn settings_of_the_site_are_kept_and_extended() {
    let site = "Licenses=matlab:5,pod64:32 # ours\nJobSubmitPlugins=all_partitions\nGresTypes=gpu\n\
                LaunchParameters = \"mem_sort\"\nPrologEpilogTimeout=300\nPrologSlurmctld=/site/prolog\n";
    let text = format!("{site}{NODE}");
    let rendered = render(&input(&text)).unwrap();
    let new = file(&rendered, "slurm.conf").unwrap();
    for line in [
        "JobSubmitPlugins=all_partitions,lua",
        "GresTypes=gpu,vipu",
        "LaunchParameters = mem_sort,use_interactive_step",
        "PrologEpilogTimeout=660",
        "PrologSlurmctld=/site/prolog",
        "Licenses=matlab:5,pod64:32 # ours",
    ] {
        assert!(new.lines().any(|known| known == line), "{line}: {new}");
    }
    let hook = findings(&rendered)
        .into_iter()
        .find(|finding| finding.contains("PrologSlurmctld ="))
        .unwrap();
    assert_eq!(
        hook,
        "warning: slurm.conf:6:17: PrologSlurmctld = /site/prolog: is a program of your own, and stays; \
         call /usr/lib/ipu-slurm/prolog-slurmctld from it"
    );
    assert!(
        file(&rendered, "ipu_limits.lua")
            .unwrap()
            .contains("pod_ipus = 32")
    );
}

/// A configuration that is right, in several files.
const SPLIT: &str = "ClusterName=lab\nInclude hooks.conf\nInclude licenses.conf\nInclude nodes.conf\n";
const SPLIT_FILES: [(&str, &str); 3] = [
    (
        "hooks.conf",
        "PrologSlurmctld=/site/start.sh\nEpilogSlurmctld=/usr/lib/ipu-slurm/epilog-slurmctld\n\
         TaskProlog=/usr/lib/ipu-slurm/task-prolog\nPropagateResourceLimitsExcept=MEMLOCK\n\
         LaunchParameters=use_interactive_step\nJobSubmitPlugins=lua\nPrologEpilogTimeout=30\n",
    ),
    (
        "licenses.conf",
        "Licenses=matlab:4;pod64:8,,ansys:0,pod64:8,x:y # ours\r\n",
    ),
    (
        "nodes.conf",
        "NodeName=n[1-2] CPUs=4\nPartitionName=ipu Nodes=ALL\n",
    ),
];

fn names(rendered: &Rendered) -> Vec<&str> {
    rendered.files.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_setting_is_changed_in_the_file_that_has_it() {
    let mut input = input("");
    input.slurm_conf = conf(SPLIT, &SPLIT_FILES);
    input.options.ipus = [("pod64".to_owned(), 64)].into();
    let rendered = render(&input).unwrap();
    assert_eq!(
        names(&rendered),
        ["hooks.conf", "licenses.conf", "plugstack.conf", "ipu_limits.lua"]
    );
    let hooks = SPLIT_FILES[0].1.replace("Timeout=30", "Timeout=660");
    assert_eq!(file(&rendered, "hooks.conf"), Some(hooks.as_str()));
    assert_eq!(
        file(&rendered, "licenses.conf"),
        Some("Licenses=matlab:4;pod64:64,,ansys:0,x:y # ours\r\n")
    );
    let shown: Vec<String> = findings(&rendered);
    let expected = [
        "error: licenses.conf:1:44: license = x:y: a count is a whole number",
        "error: licenses.conf:1:10: Licenses = matlab:4;pod64:8,,ansys:0,pod64:8,x:y: Slurm counts",
        "warning: hooks.conf:1:17: PrologSlurmctld = /site/start.sh: is a program of your own, and stays",
        "error: hooks.conf:7:21: PrologEpilogTimeout = 30: Slurm kills",
    ];
    for (shown, expected) in shown.iter().zip(expected) {
        assert!(shown.starts_with(expected), "{shown}");
    }
}

#[test]
fn a_line_is_added_only_if_no_file_has_its_key() {
    let text = format!("{SPLIT}Include absent.conf\n");
    let without = |removed: &str| {
        let hooks = SPLIT_FILES[0].1.replace(removed, "#");
        let mut input = input("");
        input.slurm_conf = conf(&text, &[("hooks.conf", &hooks), SPLIT_FILES[1], SPLIT_FILES[2]]);
        input.options.ipus = [("pod64".to_owned(), 16)].into();
        render(&input).unwrap()
    };
    let complete = without("none");
    assert!(complete.is_complete);
    let unread = "slurm.conf:5:9: Include = absent.conf: cannot be read: No such file; correct the path, or run \
                  the command where the file is";
    assert!(findings(&complete).contains(&format!("error: {unread}")));

    let incomplete = without("JobSubmitPlugins=");
    assert!(!incomplete.is_complete && file(&incomplete, "slurm.conf").is_none());
    let findings = findings(&incomplete);
    assert!(findings.contains(&format!("error: {unread}")), "{findings:?}");
    let absent = "warning: slurm.conf:5:1: JobSubmitPlugins is absent: ipu_slurm.lua does not turn requests into \
                  licenses; write JobSubmitPlugins=lua, unless an included file that cannot be read has \
                  JobSubmitPlugins";
    assert!(findings.iter().any(|finding| finding == absent), "{findings:?}");
}

#[test]
fn lines_are_added_at_the_end_of_slurm_conf_with_its_line_ends() {
    let mut input = input("");
    let files = [
        ("nodes.conf", NODE),
        ("other.conf", "GresTypes=gpu\nVipuIpuofDir=/home/ipuof # shared\n"),
    ];
    input.slurm_conf = conf(
        "ClusterName=lab\r\nInclude nodes.conf\r\nInclude other.conf",
        &files,
    );
    let rendered = render(&input).unwrap();
    let main = file(&rendered, "slurm.conf").unwrap();
    let beginning = "ClusterName=lab\r\nInclude nodes.conf\r\nInclude other.conf\r\n\r\n# IPUs of jobs.\r\n";
    assert!(
        main.starts_with(beginning) && main.contains("\r\nLicenses=pod64:64\r\n"),
        "{main}"
    );
    assert_eq!(main.matches('\n').count(), main.matches("\r\n").count());
    assert_eq!(file(&rendered, "other.conf"), Some("GresTypes=gpu,vipu\n"));
    let vipu_conf = file(&rendered, "vipu.conf").unwrap();
    assert!(vipu_conf.ends_with("VipuIpuofDir=/home/ipuof\n"), "{vipu_conf}");
}

#[test]
fn a_count_with_an_equals_sign_is_reported_for_versions_that_do_not_know_it() {
    for (version, licenses, is_reported) in [
        ("22.05", "pod64=64", true),
        ("22.05", "pod64:64", false),
        ("23.11", "pod64=64", false),
    ] {
        let mut input = input(&format!("Licenses={licenses}\nNodeName=n1\n"));
        input.version = version.parse().unwrap();
        let findings = findings(&render(&input).unwrap());
        let expected = "error: slurm.conf:1:10: Licenses = pod64=64: Slurm 22.05 takes `=` for a part of the name; \
                        write Licenses=pod64:64";
        assert_eq!(
            findings.iter().any(|finding| finding == expected),
            is_reported,
            "{findings:?}"
        );
    }
}

#[test]
fn a_hook_with_several_programs_is_one_of_them_where_slurm_runs_all() {
    for (version, lines, is_found) in [
        (
            "24.05",
            "Prolog=/usr/lib/ipu-slurm/prolog\nProlog=/site/prolog.sh\n",
            true,
        ),
        (
            "23.11",
            "Prolog=/usr/lib/ipu-slurm/prolog\nProlog=/site/prolog.sh\n",
            false,
        ),
        (
            "23.11",
            "Prolog=/site/prolog.sh\nProlog=/usr/lib/ipu-slurm/prolog\n",
            true,
        ),
        ("24.11", "Prolog=/site/prolog.sh\n", false),
    ] {
        let mut input = input(&format!("{lines}NodeName=host-1 gres=vipu:1:16\n"));
        input.version = version.parse().unwrap();
        let rendered = render(&input).unwrap();
        let main = file(&rendered, "slurm.conf").unwrap();
        assert!(main.starts_with(lines), "{main}");
        let findings = findings(&rendered);
        let is_own = findings
            .iter()
            .any(|finding| finding.contains(": Prolog = /site/prolog.sh: "));
        assert_eq!(is_own, !is_found, "{version} {lines} {findings:?}");
    }
}

#[test]
fn static_partitions_need_hooks_of_the_nodes_and_no_licenses() {
    let rendered = render(&input(
        "NodeName=host-1 gres=vipu:1:16\nNodeName=host-2 gres=vipu:2:8\n",
    ))
    .unwrap();
    let new = file(&rendered, "slurm.conf").unwrap();
    assert!(new.contains("GresTypes=vipu\n"), "{new}");
    for hook in ["Prolog", "Epilog", "TaskProlog"] {
        let link = hook.to_lowercase().replace("taskprolog", "task-prolog");
        assert!(
            new.contains(&format!("\n{hook}=/usr/lib/ipu-slurm/{link}\n")),
            "{new}"
        );
    }
    assert!(
        !new.contains("Licenses") && !new.contains("PrologSlurmctld"),
        "{new}"
    );
    let vipu_conf = file(&rendered, "vipu.conf").unwrap();
    assert!(
        vipu_conf.ends_with("PoolDir=/var/lib/ipu-pool/%n\n"),
        "{vipu_conf}"
    );
    let errors = rendered
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error);
    let fields: Vec<&str> = errors
        .map(|finding| finding.error.violation.field.as_str())
        .collect();
    for field in ["Prolog", "Epilog", "TaskProlog", "PrologFlags", "PoolDir"] {
        assert!(fields.contains(&field), "{fields:?}");
    }
    assert!(new.contains("\nPrologFlags=Alloc\n"), "{new}");
    assert_eq!(
        file(&rendered, "gres.conf"),
        Some(
            "NodeName=host-1 Name=vipu Type=1 Count=16 Flags=CountOnly\n\
             NodeName=host-2 Name=vipu Type=2 Count=8 Flags=CountOnly\n"
        )
    );
    assert_eq!(file(&rendered, "ipu_limits.lua"), None);
}

#[test]
fn a_flag_that_implies_a_prolog_on_each_node_is_enough() {
    for (flags, expected) in [
        ("Alloc", "Alloc"),
        ("Serial,contain", "Serial,contain"),
        ("X11", "X11"),
        ("Serial", "Serial,Alloc"),
    ] {
        let node = "NodeName=host-1 gres=vipu:1:16\n";
        let rendered = render(&input(&format!("PrologFlags={flags}\n{node}"))).unwrap();
        let new = file(&rendered, "slurm.conf").unwrap();
        assert!(new.contains(&format!("PrologFlags={expected}\n")), "{new}");
    }
}

#[test]
fn a_node_with_two_sizes_and_a_partition_for_every_job_is_refused() {
    let vipu_conf = format!("{VIPU_CONF}PoolDir=/var/lib/ipu-pool/%n\nEveryJobHasOne=1\n");
    let render_nodes = |nodes: &str| {
        render(&RenderInput {
            vipu_conf: ("vipu.conf", &vipu_conf),
            ..input(nodes)
        })
    };
    let errors = render_nodes("NodeName=n1 Gres=vipu:1:4,vipu:2:2\n").unwrap_err();
    let error = errors[0].to_string();
    assert!(
        error.starts_with("vipu.conf:1:1: EveryJobHasOne = 1: node n1 has partitions of several sizes"),
        "{error}"
    );
    assert!(render_nodes("NodeName=n1 Gres=vipu:1:4\nNodeName=n2 Gres=vipu:2:2\n").is_ok());
}

#[test]
fn a_host_map_makes_nodes_exclusive() {
    let text =
        format!("{NODE}PartitionName=a Nodes=n1\nPartitionName=b Nodes=n2 OverSubscribe=NO State=UP\n");
    let mut input = input(&text);
    let vipu_conf = format!("{VIPU_CONF}HostMap=/etc/slurm/ipum.allocs\n");
    input.vipu_conf = ("vipu.conf", &vipu_conf);
    let rendered = render(&input).unwrap();
    let new = file(&rendered, "slurm.conf").unwrap();
    assert!(
        new.contains("PartitionName=a OverSubscribe=EXCLUSIVE Nodes=n1\n"),
        "{new}"
    );
    assert!(
        new.contains("PartitionName=b Nodes=n2 OverSubscribe=EXCLUSIVE State=UP\n"),
        "{new}"
    );
}

#[test]
fn slurm_partitions_without_hosts_of_the_map_stay_shared() {
    let map = HostMap::parse("ipum.allocs", "# höst\nn1:ipum1\nrack2-n01:ipum2\n").unwrap();
    let vipu_conf = format!("{VIPU_CONF}HostMap=/etc/slurm/ipum.allocs\n");
    let exclusive = |partitions: &str| {
        let text = format!("{NODE}{partitions}");
        let input = RenderInput {
            vipu_conf: ("vipu.conf", &vipu_conf),
            host_map: Some(&map),
            ..input(&text)
        };
        let rendered = render(&input).unwrap();
        let new = file(&rendered, "slurm.conf").unwrap();
        new.matches("OverSubscribe=EXCLUSIVE").count()
    };
    for (partitions, expected) in [
        (
            "PartitionName=a Nodes=n[1-4]\nPartitionName=cpu Nodes=n[2-4]\n",
            1,
        ),
        ("PartitionName=a Nodes=ALL\nPartitionName=b\n", 2),
        (
            "NodeSet=ipus Nodes=n1\nPartitionName=a Nodes=ipus\nPartitionName=b Nodes=n2\n",
            1,
        ),
        ("NodeSet=fast Feature=f\nPartitionName=a Nodes=n2,fast\n", 1),
        ("PartitionName=a Nodes=n[1\n", 1),
        (
            "NodeName=rack[1-2]-n[01-02]\nPartitionName=a Nodes=rack[1-2]-n01\nPartitionName=b Nodes=n2\n",
            1,
        ),
        (
            "PartitionName=DEFAULT Nodes=n1\nPartitionName=a\nPartitionName=b Nodes=n2\n",
            1,
        ),
        ("PartitionName=a Nodes=n1 Shared=NO\n", 1),
    ] {
        assert_eq!(exclusive(partitions), expected, "{partitions}");
    }
}

#[test]
fn a_partition_may_be_exclusive_by_default_or_by_old_names() {
    let vipu_conf = format!("{VIPU_CONF}HostMap=/etc/slurm/ipum.allocs\n");
    for (partitions, is_exclusive) in [
        ("PartitionName=a Shared=exclusive\n", true),
        ("PartitionName=a exclusive=node\n", true),
        (
            "PartitionName=DEFAULT OverSubscribe=EXCLUSIVE\nPartitionName=a\n",
            true,
        ),
        (
            "PartitionName=DEFAULT Shared=EXCLUSIVE\nPartitionName=DEFAULT MaxTime=1\nPartitionName=a\n",
            true,
        ),
        (
            "PartitionName=DEFAULT OverSubscribe=EXCLUSIVE\nPartitionName=a Shared=NO\n",
            true,
        ),
        (
            "PartitionName=DEFAULT Shared=EXCLUSIVE\nPartitionName=a OverSubscribe=NO\n",
            false,
        ),
        (
            "PartitionName=DEFAULT OverSubscribe=EXCLUSIVE\nPartitionName=a Exclusive=NO\n",
            false,
        ),
        (
            "PartitionName=a\nPartitionName=DEFAULT OverSubscribe=EXCLUSIVE\n",
            false,
        ),
        (
            "PartitionName=DEFAULT OverSubscribe=EXCLUSIVE\nPartitionName=a OverSubscribe=YES:4\n",
            false,
        ),
    ] {
        let mut input = input(&format!("NodeName=n1\n{partitions}"));
        input.vipu_conf = ("vipu.conf", &vipu_conf);
        let found = findings(&render(&input).unwrap());
        let is_reported = found
            .iter()
            .any(|finding| finding.contains("it has the nodes alone"));
        assert_eq!(is_reported, !is_exclusive, "{partitions} {found:?}");
    }
}

#[test]
fn a_model_with_a_license_only_needs_hooks_and_no_plugin() {
    let text = "Licenses=pod64:48,matlab:2\nNodeName=n1\n";
    let rendered = render(&input(text)).unwrap();
    let new = file(&rendered, "slurm.conf").unwrap();
    assert!(
        new.contains("PrologSlurmctld=/usr/lib/ipu-slurm/prolog-slurmctld\n"),
        "{new}"
    );
    assert!(new.contains("\nPropagateResourceLimitsExcept=MEMLOCK\n"), "{new}");
    assert!(new.contains("Licenses=pod64:48,matlab:2\n"), "{new}");
    for absent in ["JobSubmitPlugins", "GresTypes"] {
        assert!(!new.contains(absent), "{new}");
    }
    for absent in ["plugstack.conf", "ipu_limits.lua"] {
        assert_eq!(file(&rendered, absent), None);
    }
    assert!(!rendered.uses_plugin);

    let mut with_plugin = input(text);
    with_plugin.options.ipus = [("pod64".to_owned(), 64)].into();
    let rendered = render(&with_plugin).unwrap();
    assert!(rendered.uses_plugin && file(&rendered, "ipu_limits.lua").is_some());
}

#[test]
fn other_lines_of_gres_conf_and_plugstack_conf_stay() {
    let mut input = input(NODE);
    input.gres_conf = "# ours\nNodeName=n1 Name=gpu Count=4\nName=vipu Type=pod64 Count=8\n";
    input.plugstack_conf = "include /etc/slurm/plugstack.d/*\nrequired /opt/libspank_vipu.so\n";
    let rendered = render(&input).unwrap();
    assert_eq!(
        file(&rendered, "gres.conf"),
        Some(
            "# ours\nNodeName=n1 Name=gpu Count=4\n\
             NodeName=n[1-2] Name=vipu Type=pod64 Count=64 Flags=CountOnly\n"
        )
    );
    assert_eq!(
        file(&rendered, "plugstack.conf"),
        Some("include /etc/slurm/plugstack.d/*\noptional /opt/libspank_vipu.so\n")
    );
}

#[test]
fn given_ipus_make_a_model_without_nodes_available() {
    let mut input = input(NODE);
    input.models = &[
        ("pod64", VIPU_CONF),
        (
            "pod12",
            "ApiHost=other\nIpuofDir=/home/ipuof\nNodeFeature=pod12\n",
        ),
    ];
    input.options.ipus = [("pod12".to_owned(), 12), ("pod64".to_owned(), 128)].into();
    let rendered = render(&input).unwrap();
    let new = file(&rendered, "slurm.conf").unwrap();
    assert!(new.contains("\nLicenses=pod12:12,pod64:128\n"), "{new}");
    let limits = file(&rendered, "ipu_limits.lua").unwrap();
    assert!(
        limits.contains("pod_ipus = 12, largest_partition = 8, feature = \"pod12\" }"),
        "{limits}"
    );
    // pod64.conf is a copy of vipu.conf.
    assert!(limits.contains("default_model = \"pod64\""), "{limits}");
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let refused = |input: &RenderInput<'_>| render(input).unwrap_err()[0].to_string();
    let no_ipus = refused(&input("NodeName=n1\n"));
    assert!(
        no_ipus.contains("slurm.conf:1:1: Gres is absent: no node has IPUs"),
        "{no_ipus}"
    );
    let mut digit = input("NodeName=n1 Gres=vipu:64:no_consume:64\n");
    digit.models = &[("64", VIPU_CONF)];
    assert!(refused(&digit).contains("begins with a letter"));
    let mut given = input(NODE);
    given.options.ipus = [("pod46".to_owned(), 64)].into();
    assert!(refused(&given).contains("pod46.conf:1:1: model = pod46: has no file"));
    for version in ["21.08", "24", "24.13", "4.11", ""] {
        assert!(
            version.parse::<ipu_slurm::render::SlurmVersion>().is_err(),
            "{version}"
        );
    }
}

#[test]
fn licenses_are_accounted_only_with_a_database() {
    let resources = "\nAccountingStorageTRES=license/pod64\n";
    for (accounting, is_accounted) in [
        ("", false),
        ("AccountingStorageType=accounting_storage/none\n", false),
        ("AccountingStorageType=accounting_storage/slurmdbd\n", true),
    ] {
        let text = format!("{accounting}{NODE}");
        let rendered = render(&input(&text)).unwrap();
        let new = file(&rendered, "slurm.conf").unwrap();
        assert_eq!(new.contains(resources), is_accounted, "{new}");
        let old = format!("{text}AccountingStorageTRES=gres/gpu,license/pod64\n");
        let kept = render(&input(&old)).unwrap();
        let kept = file(&kept, "slurm.conf").unwrap();
        let resources = "AccountingStorageTRES=gres/gpu,license/pod64\n";
        assert_eq!(kept.contains(resources), is_accounted, "{kept}");
        let is_noted = rendered.notes.iter().any(|note| note.contains("slurmdbd"));
        assert_ne!(is_noted, is_accounted);
    }
}

#[test]
fn a_host_map_needs_hooks_and_exclusive_nodes_and_no_gres() {
    let vipu_conf = format!("{VIPU_CONF}HostMap=/etc/slurm/ipum.allocs\n");
    let text = "NodeName=n1\nPartitionName=a Nodes=n1\n";
    let input = RenderInput {
        vipu_conf: ("vipu.conf", &vipu_conf),
        ..input(text)
    };
    let rendered = render(&input).unwrap();
    let new = file(&rendered, "slurm.conf").unwrap();
    for line in [
        "PartitionName=a OverSubscribe=EXCLUSIVE Nodes=n1\n",
        "PrologSlurmctld=/usr/lib/ipu-slurm/prolog-slurmctld\n",
        "EpilogSlurmctld=/usr/lib/ipu-slurm/epilog-slurmctld\n",
        "TaskProlog=/usr/lib/ipu-slurm/task-prolog\n",
    ] {
        assert!(new.contains(line), "{new}");
    }
    assert!(
        !new.contains("Licenses=") && !new.contains("JobSubmitPlugins"),
        "{new}"
    );
    assert!(file(&rendered, "ipu_limits.lua").is_none());
}

#[test]
fn findings_have_a_level() {
    let text = format!("AccountingStorageType=accounting_storage/slurmdbd\n{NODE}");
    let rendered = render(&input(&text)).unwrap();
    let warnings: Vec<&str> = rendered
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Warning)
        .map(|finding| finding.error.violation.field.as_str())
        .collect();
    assert_eq!(warnings, ["LaunchParameters", "AccountingStorageTRES", "plugin"]);
}
