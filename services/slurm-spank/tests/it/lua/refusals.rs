//! Requests that the scripts refuse.

use super::{THREE_SYSTEMS, bed_with_lua, submit};
use crate::recorded;

#[test]
fn requests_that_can_never_run_are_refused_by_name() {
    let Some(bed) = bed_with_lua("requests_that_can_never_run_are_refused_by_name", THREE_SYSTEMS) else {
        return;
    };
    let cases: [(&[&str], &str); 24] = [
        (
            &["--ipus=64"],
            "--ipus=64: a job has at most 32 IPUs of pod64 (MaxIpusPerJob); use 32",
        ),
        (
            &["--ipus=32", "--ipu-model=pod16"],
            "--ipus=32: a job has at most 16 IPUs of pod16 (the size of the IPU-POD); use 16",
        ),
        (
            &["--ipus=4", "--ipu-model=pod8"],
            "--ipus=4: there is no system pod8; use one of: pod12, pod16, pod64",
        ),
        (
            &["--gres=vipu:pod64:3"],
            "--gres=vipu:pod64:3: the number of IPUs is a power of two; use 4",
        ),
        (
            &["--licenses=pod64:3"],
            "--licenses=pod64:3: the number of IPUs is a power of two; use 4",
        ),
        (
            &["--licenses=pod64:0"],
            "--licenses=pod64:0: the form is pod64:<n>; use --ipus=N",
        ),
        (
            &["--licenses=pod64:999999999999"],
            "the form is pod64:<n>; use --ipus=N",
        ),
        (
            &["--gres=vipu"],
            "--gres=vipu: must have the form vipu:<model>:<n>; use --ipus=N",
        ),
        (
            &["--gres=vipu:2"],
            "--gres=vipu:2: must have the form vipu:<model>:<n>; use --ipus=N",
        ),
        (
            &["--gres=vipu:pod64"],
            "--gres=vipu:pod64: must have the form vipu:<model>:<n>; use --ipus=N",
        ),
        (
            &["--gres=vipu:pod64:4,vipu:pod16:4"],
            "a job has one partition; ask for IPUs once",
        ),
        (
            &["--licenses=pod64:4,pod16:4"],
            "a job has one partition; ask for IPUs once",
        ),
        (
            &["--ipus=8", "--gres=vipu:pod64:4"],
            "--ipus=8 and --gres=vipu:pod64:4 disagree",
        ),
        (
            &["--ipus=8", "--licenses=pod64:4"],
            "--ipus=8 and --licenses=pod64:4 disagree",
        ),
        (
            &["--ipus=8", "--ipu-model=pod16", "--licenses=pod64:8"],
            "--ipus=8 and --licenses=pod64:8 disagree",
        ),
        (
            &["--ipu-model=pod16", "--licenses=pod64:8"],
            "--ipu-model=pod16 and --licenses=pod64:8 disagree",
        ),
        (&["--licenses=pod64:8|pod16:8"], "a job has one partition"),
        (
            &["--licenses=pod64:8|matlab:1"],
            "`|` cannot choose between IPUs; write pod64:8",
        ),
        (
            &["--ipus=4", "--licenses=matlab:1|matlab:2"],
            "--licenses=matlab:1|matlab:2: `|` cannot be combined with IPUs; write matlab:1",
        ),
        (
            &["--gres=vipu:pod64:8", "--ipu-gcds=16"],
            "--ipu-gcds=16: the GCDs divide the 8 IPUs",
        ),
        (
            &["--ipu-gcds=2"],
            "--ipu-gcds: the job asks for no IPUs; add --ipus=N",
        ),
        (
            &["--ipu-reconfigurable"],
            "--ipu-reconfigurable: the job asks for no IPUs",
        ),
        (
            &["--gres=vipu:pod12:9"],
            "--gres=vipu:pod12:9: the number of IPUs is a power of two; use 8",
        ),
        (
            &["--gres=vipu:pod64:8", "-N2"],
            "a job has one partition; use --ipus=8",
        ),
    ];
    for (options, text) in cases {
        let refused = submit(&bed, options).unwrap_err();
        assert!(
            refused.contains("error: vipu: ") && refused.contains(text),
            "{options:?}: {refused}"
        );
    }
    for command in ["srun", "salloc"] {
        let output = bed.run(command, &["--ipus=64", "true"]);
        assert!(
            !output.success && output.stderr.contains("a job has at most 32 IPUs"),
            "{output:?}"
        );
    }
    assert_eq!(submit(&bed, &[]).unwrap(), "1");
}

#[test]
fn only_the_first_component_of_a_heterogeneous_job_has_ipus() {
    let name = "only_the_first_component_of_a_heterogeneous_job_has_ipus";
    let Some(bed) = bed_with_lua(name, THREE_SYSTEMS) else {
        return;
    };
    for form in ["--ipus=4", "--gres=vipu:pod64:4", "--licenses=pod64:4"] {
        for command in ["sbatch", "salloc", "srun"] {
            let run: &[&str] = if command == "sbatch" {
                &["--wrap", "true"]
            } else {
                &["true"]
            };
            let output = bed.run(command, &[&["-n1", ":", "-n1", form], run].concat());
            let refused = !output.success && output.stderr.contains("ask for them on the first component");
            assert!(refused, "{command} {form}: {output:?}");
        }
    }
    assert!(bed.job_ids().is_empty());
    let options = [
        "--parsable",
        "--ipus=4",
        "-n1",
        ":",
        "-n1",
        "-o",
        "/dev/null",
        "--wrap",
        "true",
    ];
    let leader = bed.succeed("sbatch", &options);
    let later = (leader.parse::<u32>().unwrap() + 1).to_string();
    let none: [&str; 0] = [];
    assert_eq!(
        recorded(&bed, &format!("{leader}.prolog_slurmctld")),
        ["SPANK_VIPU_IPUS=4"]
    );
    assert_eq!(recorded(&bed, &format!("{later}.prolog_slurmctld")), none);
    assert!(bed.show_job(&leader).contains(" Licenses=pod64:4 "));
    assert!(bed.show_job(&later).contains(" Licenses=(null) "));
    for command in ["salloc", "srun"] {
        bed.succeed(command, &["--ipus=4", "-n1", ":", "-n1", "true"]);
        let output = bed.run(command, &["--ipus=4", "-n1", ":", "--ipus=8", "-n1", "true"]);
        assert!(
            output.stderr.contains("--ipus=8: only the first component"),
            "{output:?}"
        );
    }
}
