//! Rendered configurations.

mod properties;
mod seed;

use std::fs;
use std::path::{Path, PathBuf};

use ipu_slurm::conf::HostMap;
use ipu_slurm::render::{RenderInput, RenderOptions, Rendered, Severity, render};

/// A `slurm.conf` with the line of seed 004 §8.5.4.
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

/// Returns the input with one `slurm.conf`, a model `pod64`, and Slurm 24.11.
fn input(slurm_conf: &str) -> RenderInput<'_> {
    RenderInput {
        version: "24.11".parse().expect("a version"),
        slurm_conf: ("slurm.conf", slurm_conf),
        included: None,
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
    let plugin = read("conf/seed-v-ipu-plugin.conf");
    let mut first_input = input(SLURM_CONF);
    first_input.included = Some(("v-ipu-plugin.conf", &plugin));
    let first = render(&first_input).unwrap();
    let mut second_input = first_input.clone();
    second_input.included = Some(("v-ipu-plugin.conf", file(&first, "v-ipu-plugin.conf").unwrap()));
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

#[test]
fn an_included_file_extends_the_lists_of_slurm_conf() {
    let mut input = input("Licenses=matlab:5\nGresTypes=gpu\nVipuIpuofDir=/home/ipuof\n");
    input.included = Some(("v-ipu-plugin.conf", NODE));
    let rendered = render(&input).unwrap();
    let included = file(&rendered, "v-ipu-plugin.conf").unwrap();
    assert!(included.contains("\nLicenses=matlab:5,pod64:64\n"), "{included}");
    assert!(included.contains("\nGresTypes=gpu,vipu\n"), "{included}");
    let main = file(&rendered, "slurm.conf").unwrap();
    assert!(!main.contains("VipuIpuofDir"), "{main}");
    assert!(main.ends_with("Include v-ipu-plugin.conf\n"), "{main}");
    let vipu_conf = file(&rendered, "vipu.conf").unwrap();
    assert!(vipu_conf.ends_with("VipuIpuofDir=/home/ipuof\n"), "{vipu_conf}");
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
    let map = HostMap::parse("ipum.allocs", "n1:ipum1\n").unwrap();
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
        ("NodeSet=ipus Nodes=n1\nPartitionName=a Nodes=ipus\n", 1),
        ("PartitionName=a Nodes=n[1\n", 1),
    ] {
        assert_eq!(exclusive(partitions), expected, "{partitions}");
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
        ("pod12", "ApiHost=other\nIpuofDir=/home/ipuof\n"),
    ];
    input.options.ipus = [("pod12".to_owned(), 12), ("pod64".to_owned(), 128)].into();
    let rendered = render(&input).unwrap();
    let new = file(&rendered, "slurm.conf").unwrap();
    assert!(new.contains("\nLicenses=pod12:12,pod64:128\n"), "{new}");
    let limits = file(&rendered, "ipu_limits.lua").unwrap();
    assert!(
        limits.contains("pod_ipus = 12, largest_partition = 8"),
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
    let licenses = refused(&input(&format!("Licenses=a|b\n{NODE}")));
    assert!(
        licenses.starts_with("slurm.conf:1:10: Licenses = a|b"),
        "{licenses}"
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
