//! The scripts of `deploy/slurm` in a real slurmctld.

mod refusals;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ipu_test_slurm::{Bed, BedOptions, Hook, bed};

use crate::{RECORD, library, recorded};

/// Returns a bed with the plugin, the scripts and these limits.
fn bed_with_lua(test: &str, limits: &str) -> Option<Bed> {
    let options = BedOptions::new()
        .licenses("pod64:64,pod16:16,matlab:5")
        .node_gres("vipu:pod64:no_consume:64,vipu:pod16:no_consume:16")
        .spank_plugin("optional", &library())
        .job_submit_lua(&deploy("job_submit.lua"))
        .copy("etc/ipu_slurm.lua", &deploy("ipu_slurm.lua"))
        .text("etc/ipu_limits.lua", limits)
        .hook_script(Hook::PrologSlurmctld, RECORD)
        .hook_script(Hook::TaskProlog, RECORD);
    bed(test, options)
}

const THREE_SYSTEMS: &str = r#"return { default_model = "pod64", models = {
  pod64 = { max_ipus_per_job = 32, pod_ipus = 64, largest_partition = 64 },
  pod16 = { max_ipus_per_job = 64, pod_ipus = 16, largest_partition = 16 },
  pod12 = { max_ipus_per_job = 64, pod_ipus = 12, largest_partition = 16 },
} }"#;

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/slurm")
        .join(name)
}

#[test]
fn the_thin_thread_carries_option_license_and_environment() {
    let Some(bed) = bed_with_lua(
        "the_thin_thread_carries_option_license_and_environment",
        THREE_SYSTEMS,
    ) else {
        return;
    };
    let mut sbatch = bed.command_as("daemon", "sbatch");
    let output = sbatch
        .args(["--ipus=4", "-o", "/dev/null", "--wrap", "srun true"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(recorded(&bed, "1.prolog_slurmctld"), ["SPANK_VIPU_IPUS=4"]);
    let environment = bed.directory().join("records/1.prolog_slurmctld");
    let environment = std::fs::read_to_string(environment).unwrap();
    assert!(
        environment.contains("SLURM_JOB_LICENSES=pod64:4\n"),
        "{environment}"
    );
    for step in ["", "0"] {
        let variables = recorded(&bed, &format!("1.prolog_task{step}"));
        assert!(variables.contains(&"VIPU_IPUS=4".into()), "{variables:?}");
    }
    bed.wait_until("the job has ended", || bed.job_ids().is_empty());
    let licenses = bed.succeed("scontrol", &["-o", "show", "licenses", "pod64"]);
    assert!(licenses.contains("Used=0"), "{licenses}");
}

#[test]
fn every_form_of_request_becomes_the_license() {
    let Some(bed) = bed_with_lua("every_form_of_request_becomes_the_license", THREE_SYSTEMS) else {
        return;
    };
    let cases: [(&[&str], &str); 11] = [
        (&["--ipus=4"], "pod64:4"),
        (&["--ipus=4", "--ipu-model=pod16", "--ipu-gcds=2"], "pod16:4"),
        (&["--gres=vipu:pod64:8"], "pod64:8"),
        (&["--gres=vipu:pod16:8", "-N1"], "pod16:8"),
        (&["--gres=vipu:pod64:8", "--ipu-gcds=2"], "pod64:8"),
        (&["--licenses=pod16:2"], "pod16:2"),
        (&["--licenses=pod64"], "pod64"),
        // The hooks do not read the name of a job, so any name is valid.
        (&["--licenses=pod64:4", "--job-name=x\nJobId=1 "], "pod64:4"),
        (&["--licenses=matlab:2", "--ipus=4", "-N2"], "matlab:2,pod64:4"),
        (
            &["--ipus=8", "--gres=vipu:pod64:8", "--licenses=pod64:8"],
            "pod64:8",
        ),
        (&["--licenses=matlab:2"], "matlab:2"),
    ];
    for (options, licenses) in cases {
        let job = submit(&bed, options).unwrap();
        let text = bed.show_job(&job);
        assert!(
            text.contains(&format!(" Licenses={licenses} ")),
            "{options:?}: {text}"
        );
    }
    let job = submit(&bed, &[]).unwrap();
    assert!(bed.show_job(&job).contains(" Licenses=(null) "));
}

#[test]
fn tasks_of_a_batch_job_know_its_ipus_whatever_form_it_used() {
    let Some(bed) = bed_with_lua(
        "tasks_of_a_batch_job_know_its_ipus_whatever_form_it_used",
        THREE_SYSTEMS,
    ) else {
        return;
    };
    for form in ["--gres=vipu:pod64:8", "--licenses=pod64:8"] {
        let options = ["--parsable", form, "-o", "/dev/null", "--wrap", "srun true"];
        let job = bed.succeed("sbatch", &options);
        for step in ["", "0"] {
            let record = format!("{job}.prolog_task{step}");
            assert_eq!(recorded(&bed, &record), ["VIPU_IPUS=8"], "{form} {record}");
        }
    }
}

#[test]
fn a_job_with_ipus_starts_on_nodes_with_the_feature_of_its_model_only() {
    let name = "a_job_with_ipus_starts_on_nodes_with_the_feature_of_its_model_only";
    let limits = r#"return { models = {
      pod64 = { max_ipus_per_job = 64, pod_ipus = 64, largest_partition = 64, feature = "reaches-pod64" },
    } }"#;
    let Some(bed) = bed_with_lua(name, limits) else {
        return;
    };
    for (node, features) in [("ipu-host-3", "reaches-pod64,big"), ("ipu-host-4", "big")] {
        let (node, features) = (
            format!("NodeName={node}"),
            format!("AvailableFeatures={features}"),
        );
        bed.succeed("scontrol", &["update", &node, &features]);
    }
    let cases: [(&[&str], &str); 6] = [
        (
            &["--ipus=4", "--constraint=reaches-pod64|reaches-pod64"],
            "reaches-pod64|reaches-pod64",
        ),
        (&["--ipus=4"], "reaches-pod64"),
        (&["--licenses=pod64:4", "--constraint=big"], "big&reaches-pod64"),
        (&["--ipus=4", "--constraint=reaches-pod64"], "reaches-pod64"),
        (&["--constraint=big"], "big"),
        (&[], "(null)"),
    ];
    for (options, features) in cases {
        let job = submit(&bed, options).unwrap();
        let text = bed.show_job(&job);
        assert!(
            text.contains(&format!(" Features={features} ")),
            "{options:?}: {text}"
        );
    }
    for alternatives in ["big|small", "reaches-pod64|big", "[reaches-pod64|big]"] {
        let constraint = format!("--constraint={alternatives}");
        let refused = submit(&bed, &["--ipus=4", &constraint]).unwrap_err();
        assert!(refused.contains("write reaches-pod64 in each"), "{refused}");
    }
    let node = bed.succeed("srun", &["--ipus=4", "sh", "-c", "echo $SLURMD_NODENAME"]);
    assert_eq!(node, "ipu-host-3");
}

#[test]
fn an_update_cannot_change_the_ipus_of_a_job() {
    let Some(bed) = bed_with_lua("an_update_cannot_change_the_ipus_of_a_job", THREE_SYSTEMS) else {
        return;
    };
    let job = submit(&bed, &["--ipus=4", "--licenses=matlab:1"]).unwrap();
    let by_gres = submit(&bed, &["--gres=vipu:pod64:4"]).unwrap();
    let plain = submit(&bed, &[]).unwrap();
    for (job, change) in [
        (&job, "Licenses=pod64:1"),
        (&job, "Licenses=matlab:1"),
        (&job, "Licenses="),
        (&job, "Licenses=pod64:4|matlab:1"),
        (&by_gres, "Gres=vipu:pod64:2"),
        (&by_gres, "Gres="),
        (&plain, "Licenses=pod64:4"),
        (&plain, "Licenses=pod64:4,pod16:4"),
        (&plain, "Gres=vipu:pod64:2"),
    ] {
        let output = bed.run("scontrol", &["update", &format!("JobId={job}"), change]);
        assert!(!output.success, "{job} {change}: {output:?}");
    }
    assert!(bed.show_job(&job).contains(" Licenses=matlab:1,pod64:4 "));
    for change in [
        "Licenses=pod64:4,matlab:2",
        "AdminComment=waits",
        "TimeLimit=5",
        "Comment=x",
    ] {
        bed.succeed("scontrol", &["update", &format!("JobId={job}"), change]);
    }
    bed.succeed(
        "scontrol",
        &["update", &format!("JobId={plain}"), "Licenses=matlab:1"],
    );
}

#[test]
fn a_mistake_in_the_limits_refuses_ipus_and_nothing_else() {
    let name = "a_mistake_in_the_limits_refuses_ipus_and_nothing_else";
    let Some(bed) = bed_with_lua(name, "return {}") else {
        return;
    };
    let script = bed.directory().join("etc/job_submit.lua");
    let change = |seconds, limits: &str| {
        std::fs::write(bed.directory().join("etc/ipu_limits.lua"), limits).unwrap();
        // slurmctld compares whole seconds.
        set_modified(&script, SystemTime::now() + Duration::from_secs(seconds));
    };
    for (number, (limits, mistake)) in (1..).zip([
        ("return {}", "ipu_limits.lua: it returns a table with `models`"),
        (
            "return { models = { pod64 = {} } }",
            "models.pod64.max_ipus_per_job = nil: it is a whole number",
        ),
        ("return {", "ipu_limits.lua:1: "),
    ]) {
        change(10 * number, limits);
        for request in ["--ipus=4", "--gres=vipu:pod64:4"] {
            let refused = submit(&bed, &[request]).unwrap_err();
            assert!(refused.contains("report it to its administrator: "), "{refused}");
            assert!(refused.contains(mistake), "{refused}");
        }
        assert!(submit(&bed, &["--licenses=matlab:1"]).is_ok());
        assert!(submit(&bed, &[]).is_ok());
    }
    change(60, THREE_SYSTEMS);
    assert!(submit(&bed, &["--ipus=32"]).is_ok());
    assert!(submit(&bed, &["--ipus=64"]).is_err());
}

fn set_modified(path: &Path, time: SystemTime) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}

/// Submits a held job with these options; returns its id, or the error output.
fn submit(bed: &Bed, options: &[&str]) -> Result<String, String> {
    let fixed = ["--parsable", "--hold", "-o", "/dev/null", "--wrap", "true"];
    let output = bed.run("sbatch", &[options, &fixed].concat());
    if output.success {
        Ok(output.stdout.trim().to_owned())
    } else {
        Err(output.stderr)
    }
}
