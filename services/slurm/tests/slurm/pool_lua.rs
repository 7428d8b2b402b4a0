//! The script of `deploy/slurm` for static partitions in a real slurmctld.

use std::fs;
use std::path::{Path, PathBuf};

use ipu_test_slurm::{Bed, BedOptions, bed};

/// Returns a bed with the script, and these settings instead of its own.
fn bed_with_script(test: &str, settings: &str) -> Option<Bed> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/slurm");
    let script = fs::read_to_string(deploy.join("job_submit_static.lua")).unwrap();
    let own = "{ several = false, only_ipu_jobs = {} }";
    assert!(script.contains(own));
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("job_submit.lua");
    fs::write(&path, script.replace(own, settings)).unwrap();
    let options = BedOptions::new()
        .node_gres("vipu:1:4,vipu:2:4")
        .job_submit_lua(&path)
        .copy("etc/ipu_static.lua", &deploy.join("ipu_static.lua"));
    bed(test, options)
}

/// Submits a held batch job. Returns its GRES and the text of sbatch, or the text of a refusal.
fn submit(bed: &Bed, options: &[&str]) -> Result<(String, String), String> {
    let fixed = ["--parsable", "--hold", "-o", "/dev/null", "--wrap", "true"];
    let output = bed.run("sbatch", &[options, &fixed].concat());
    if !output.success {
        return Err(output.stderr);
    }
    let text = bed.show_job(output.stdout.trim());
    let gres = text
        .split("TresPerNode=")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    // Slurm writes gres: up to 23.02, then gres/.
    let gres = gres.unwrap_or_default().replace("gres/", "gres:");
    Ok((gres, output.stderr))
}

#[test]
fn requests_for_static_partitions_are_checked_with_the_messages_of_the_guide() {
    let test = "requests_for_static_partitions_are_checked_with_the_messages_of_the_guide";
    let Some(bed) = bed_with_script(test, "{}") else {
        return;
    };
    let undefined = submit(&bed, &["--gres=vipu"]).unwrap_err();
    let message = "ERROR: Undefined IPU partition size, use vipu:<partition_size>:<count>";
    assert!(undefined.contains(message), "{undefined}");
    for request in ["vipu:2", "vipu:2:3"] {
        let (gres, text) = submit(&bed, &[&format!("--gres={request}")]).unwrap();
        assert_eq!(gres, "gres:vipu:2:1");
        let text = text.replace("gres/", "gres:");
        let message = format!("WARN: Incorrect GRES correcting 'gres:{request}' to: 'gres:vipu:2:1'");
        assert!(text.contains(&message), "{text}");
    }
    let (gres, text) = submit(&bed, &["--gres=vipu:2:1"]).unwrap();
    assert_eq!((gres.as_str(), text.as_str()), ("gres:vipu:2:1", ""));
    assert_eq!(submit(&bed, &[]).unwrap().0, "");

    for (request, problem) in [
        (
            "--gres=vipu:1:1,vipu:2:1",
            "a job has partitions of one size; ask once",
        ),
        ("--gres=vipu:3:1", "a partition size is a power of two"),
        // Slurm itself refuses it; the words depend on its version.
        ("--gres=vipu:::", " specification"),
        ("--gres=vipu:big:1", "a partition size is a power of two"),
        (
            "--job-name=x\nJobId=1 ",
            "name: a text of a job has no control characters",
        ),
    ] {
        let text = submit(&bed, &[request]).unwrap_err();
        assert!(text.contains(problem), "{request}: {text}");
    }
    let srun = bed.run("srun", &["--gres=vipu:2", "true"]);
    assert!(srun.stderr.contains("--gres=vipu:2: write vipu:2:1"), "{srun:?}");

    let update = bed.run("scontrol", &["update", "JobId=1", "Gres=vipu:2:4"]);
    assert!(!update.success, "{update:?}");
    bed.succeed("scontrol", &["update", "JobId=1", "Comment=x"]);
}

#[test]
fn a_site_can_allow_counts_and_require_ipus() {
    let settings = r#"{ several = true, only_ipu_jobs = { "ipu" } }"#;
    let Some(bed) = bed_with_script("a_site_can_allow_counts_and_require_ipus", settings) else {
        return;
    };
    let (gres, text) = submit(&bed, &["--gres=vipu:2:3"]).unwrap();
    assert_eq!((gres.as_str(), text.as_str()), ("gres:vipu:2:3", ""));
    for options in [&[][..], &["-p", "ipu"]] {
        let text = submit(&bed, options).unwrap_err();
        assert!(
            text.contains("every job of Slurm partition ipu has IPUs"),
            "{text}"
        );
    }
}
