//! The options in `srun`, `sbatch`, `salloc` and batch scripts, and the environments that they reach.

use std::fs;

use ipu_test_slurm::Bed;

use crate::{bed_with_plugin, recorded};

/// The three commands with arguments that submit a job.
const COMMANDS: [(&str, &[&str]); 3] = [
    ("srun", &["true"]),
    ("sbatch", &["--wrap", "true"]),
    ("salloc", &["true"]),
];

#[test]
fn every_command_shows_the_options_in_its_help() {
    let Some(bed) = bed_with_plugin("every_command_shows_the_options_in_its_help") else {
        return;
    };
    for (command, _) in COMMANDS {
        let help = bed.succeed(command, &["--help"]);
        for option in [
            "--ipus=N ",
            "--ipu-model=name ",
            "--ipu-gcds=K ",
            "--ipu-reconfigurable ",
        ] {
            assert!(help.contains(option), "{command}: {option}: {help}");
        }
    }
}

#[test]
fn nothing_is_submitted_on_bad_input() {
    let Some(bed) = bed_with_plugin("nothing_is_submitted_on_bad_input") else {
        return;
    };
    let cases: [(&[&str], &str); 11] = [
        (
            &["--ipus=0"],
            "--ipus=0: the number of IPUs of a partition is a power of two from 1 to 65536; use 1",
        ),
        (
            &["--ipus=3"],
            "--ipus=3: the number of IPUs of a partition is a power of two from 1 to 65536; use 4",
        ),
        (
            &["--ipus=-1"],
            "--ipus=-1: the number of IPUs of a partition is a power of two from 1 to 65536; use 1",
        ),
        (
            &["--ipus=abc"],
            "--ipus=abc: the number of IPUs of a partition is a whole number",
        ),
        (
            &["--ipus=1e3"],
            "--ipus=1e3: the number of IPUs of a partition is a whole number",
        ),
        (&["--ipus=99999999999"], "use 65536"),
        (
            &["--ipus="],
            "--ipus=: the number of IPUs of a partition is a whole number",
        ),
        (
            &["--ipus=4", "--ipu-model=pod:64"],
            "--ipu-model=pod:64: the name of a system begins",
        ),
        (
            &["--ipus=4", "--ipu-gcds=3"],
            "--ipu-gcds=3: the number of GCDs is a power of two",
        ),
        (
            &["--ipu-gcds=8", "--ipus=4"],
            "--ipu-gcds=8: the GCDs divide the 4 IPUs",
        ),
        (
            &["--ipus=128", "--ipu-reconfigurable"],
            "--ipu-reconfigurable: a reconfigurable partition has",
        ),
    ];
    for (command, submit) in COMMANDS {
        for (options, text) in &cases {
            let output = bed.run(command, &[options, submit].concat());
            assert!(!output.success, "{command} {options:?}: {output:?}");
            let line = format!("{command}: error: vipu: ");
            assert!(output.stderr.contains(&line), "{command} {options:?}: {output:?}");
            assert!(output.stderr.contains(text), "{command} {options:?}: {output:?}");
        }
    }
    // The first job has the id 1, so none was submitted before.
    assert_eq!(bed.succeed("sbatch", &["--parsable", "--wrap", "true"]), "1");
}

#[test]
fn the_options_of_a_batch_script_reach_all_hooks_and_steps() {
    let Some(bed) = bed_with_plugin("the_options_of_a_batch_script_reach_all_hooks_and_steps") else {
        return;
    };
    write_script(
        &bed,
        "#SBATCH --ipus=4 --ipu-model=pod64\n#SBATCH --ipu-gcds=2 --ipu-reconfigurable",
        "srun true",
    );
    let job = bed.succeed("sbatch", &["--parsable", "-o", "/dev/null", "../files/batch"]);
    let variables = ["GCDS=2", "IPUS=4", "MODEL=pod64", "RECONFIGURABLE=1"];
    let with = |prefix: &str| variables.map(|variable| format!("{prefix}{variable}")).to_vec();
    for context in [
        "prolog_slurmctld",
        "prolog_slurmd",
        "epilog_slurmd",
        "epilog_slurmctld",
    ] {
        assert_eq!(
            recorded(&bed, &format!("{job}.{context}")),
            with("SPANK_VIPU_"),
            "{context}"
        );
    }
    for step in ["", "0"] {
        let variables = recorded(&bed, &format!("{job}.prolog_task{step}"));
        let expected = [with("SLURM_SPANK_VIPU_"), with("VIPU_")].concat();
        assert_eq!(variables, expected, "step {step:?}");
    }
}

#[test]
fn the_options_of_srun_and_salloc_reach_hooks_and_tasks() {
    let Some(bed) = bed_with_plugin("the_options_of_srun_and_salloc_reach_hooks_and_tasks") else {
        return;
    };
    let show = "echo $VIPU_IPUS $VIPU_GCDS";
    assert_eq!(
        bed.succeed("srun", &["--ipus=8", "--ipu-gcds=2", "sh", "-c", show]),
        "8 2"
    );
    assert_eq!(
        recorded(&bed, "1.prolog_slurmctld"),
        ["SPANK_VIPU_GCDS=2", "SPANK_VIPU_IPUS=8"]
    );
    let shell = format!("{show}; srun sh -c '{show}'");
    assert_eq!(bed.succeed("salloc", &["--ipus=4", "sh", "-c", &shell]), "4\n4");
    for context in ["prolog_slurmctld", "prolog_slurmd", "epilog_slurmctld"] {
        assert_eq!(
            recorded(&bed, &format!("2.{context}")),
            ["SPANK_VIPU_IPUS=4"],
            "{context}"
        );
    }
}

#[test]
fn a_step_that_asks_for_something_else_than_its_job_is_refused() {
    let Some(bed) = bed_with_plugin("a_step_that_asks_for_something_else_than_its_job_is_refused") else {
        return;
    };
    let steps = "srun --ipus=8 echo ran; srun --ipus=4 echo ran; srun --ipu-gcds=2 echo ran; srun echo ran";
    for command in ["salloc", "sbatch"] {
        let output = if command == "salloc" {
            let output = bed.run("salloc", &["--ipus=4", "sh", "-c", steps]);
            output.stdout + &output.stderr
        } else {
            write_script(&bed, "#SBATCH --ipus=4", steps);
            bed.succeed("sbatch", &["--wait", "-o", "output", "../files/batch"]);
            fs::read_to_string(bed.directory().join("work/output")).unwrap()
        };
        assert_eq!(output.matches("ran\n").count(), 2, "{command}: {output}");
        for text in [
            "vipu: --ipus=8: a step has the partition of its job, which was submitted with --ipus=4; leave the option out, and \
             submit the job with --ipu-gcds=N to share its IPUs among N tasks of a step",
            "vipu: --ipu-gcds=2: a step has the partition of its job, which was submitted without --ipu-gcds",
        ] {
            assert!(output.contains(text), "{command}: {output}");
        }
    }
}

#[test]
fn a_job_that_is_submitted_in_another_one_does_not_inherit_its_options() {
    let Some(bed) = bed_with_plugin("a_job_that_is_submitted_in_another_one_does_not_inherit_its_options")
    else {
        return;
    };
    let inner = "sbatch --wait -o /dev/null --wrap true; salloc sh -c 'echo [$VIPU_IPUS]'; sbatch --wait --ipus=2 -o /dev/null --wrap true";
    let output = bed.succeed("salloc", &["--ipus=4", "sh", "-c", inner]);
    assert!(output.contains("[]"), "{output}");
    let none: [&str; 0] = [];
    assert_eq!(recorded(&bed, "2.prolog_slurmctld"), none);
    assert_eq!(recorded(&bed, "2.prolog_task"), none);
    assert_eq!(recorded(&bed, "3.prolog_slurmctld"), none);
    assert_eq!(recorded(&bed, "4.prolog_slurmctld"), ["SPANK_VIPU_IPUS=2"]);
}

/// Writes `files/batch`: a script with these `#SBATCH` lines and commands.
fn write_script(bed: &Bed, directives: &str, commands: &str) {
    let script = format!("#!/bin/sh\n{directives}\n{commands}\n");
    fs::write(bed.directory().join("files/batch"), script).unwrap();
}
