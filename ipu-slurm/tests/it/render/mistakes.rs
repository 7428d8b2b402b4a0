//! Mistakes that Slurm does not report, or that keep slurmctld from its start.

use ipu_slurm::render::{RenderInput, render};

use super::{NODE, VIPU_CONF, conf, file, findings, input};

const POD16: &str = "ApiHost=ipu-ctrl\nIpuofDir=/home/ipuof\nMaxIpusPerJob=16\n";
/// The settings besides `Licenses` that a model with a license needs.
const REST: &str = "PrologSlurmctld=/usr/lib/ipu-slurm/prolog-slurmctld\n\
                    EpilogSlurmctld=/usr/lib/ipu-slurm/epilog-slurmctld\nTaskProlog=/usr/lib/ipu-slurm/task-prolog\n\
                    PropagateResourceLimitsExcept=MEMLOCK\nLaunchParameters=use_interactive_step\n";

/// Returns the findings, or the errors if the configuration cannot work, for a model `pod16`. The first file
/// is `slurm.conf`, and the others are included.
fn found(version: &str, main: &str, included: &[(&str, &str)]) -> Vec<String> {
    let input = RenderInput {
        version: version.parse().expect("a version"),
        slurm_conf: conf(main, included),
        vipu_conf: ("vipu.conf", VIPU_CONF),
        models: &[("pod16", POD16)],
        ..input("")
    };
    match render(&input) {
        Ok(rendered) => findings(&rendered),
        Err(errors) => errors.iter().map(|error| format!("error: {error}")).collect(),
    }
}

#[test]
fn a_key_that_is_set_twice_is_a_warning_with_both_places() {
    let licenses = "Licenses=matlab:4\n";
    let second = |lines: &str| format!("Include site.conf\nLicenses=pod16:16\n{REST}{lines}");
    for (version, main, site, expected) in [
        (
            "24.11",
            format!("Include site.conf\n{REST}Licenses=pod16:16\n"),
            licenses,
            Some(
                "slurm.conf:7:10: Licenses = pod16:16: is set in site.conf:1 too, and Slurm uses the last; write \
                 Licenses=matlab:4,pod16:16 there and remove this line",
            ),
        ),
        (
            "24.11",
            second("JobSubmitPlugins=lua\n"),
            "# ours\nJobSubmitPlugins=all_partitions\n",
            Some(
                "slurm.conf:8:18: JobSubmitPlugins = lua: is set in site.conf:2 too, and Slurm uses the last; write \
                 JobSubmitPlugins=all_partitions,lua there and remove this line",
            ),
        ),
        (
            "24.11",
            second(""),
            "TaskProlog=/site/task\n",
            Some(
                "slurm.conf:5:12: TaskProlog = /usr/lib/ipu-slurm/task-prolog: is set in site.conf:1 too, and Slurm \
                 uses the last; remove one of the lines",
            ),
        ),
        (
            "24.11",
            second("PrologEpilogTimeout=700\n"),
            "prologepilogtimeout=700\n",
            Some(
                "slurm.conf:8:21: PrologEpilogTimeout = 700: is set in site.conf:1 too, and Slurm uses the last; \
                 remove this line",
            ),
        ),
        (
            "23.11",
            second(""),
            "PrologSlurmctld=/site/prolog\n",
            Some(
                "slurm.conf:3:17: PrologSlurmctld = /usr/lib/ipu-slurm/prolog-slurmctld: is set in site.conf:1 too, \
                 and Slurm uses the last; remove one of the lines",
            ),
        ),
        // Slurm runs all programs of a hook.
        ("24.05", second(""), "PrologSlurmctld=/site/prolog\n", None),
        // The line is one, although its file is included twice.
        (
            "24.11",
            format!("Include site.conf\nInclude site.conf\n{REST}"),
            "Licenses=pod16:16\n",
            None,
        ),
    ] {
        let expected: Vec<String> = expected
            .map(|text| format!("warning: {text}"))
            .into_iter()
            .collect();
        assert_eq!(
            found(version, &main, &[("site.conf", site)]),
            expected,
            "{main}{site}"
        );
    }
}

#[test]
fn a_line_with_which_slurmctld_does_not_start_is_an_error() {
    let count = "a count is a whole number from 0 to 2147483647";
    for (version, licenses, expected) in [
        (
            "24.11",
            "matlab:x,pod16:16",
            format!("slurm.conf:1:10: license = matlab:x: {count}; write matlab:1, for example"),
        ),
        (
            "24.11",
            "pod16:16,'matlab:4'",
            "slurm.conf:1:19: license = 'matlab:4': has a quotation mark; remove it".to_owned(),
        ),
        (
            "24.11",
            "\"matlab:4\",pod16:16",
            "slurm.conf:1:10: license = \"matlab:4\": has a quotation mark; remove it".to_owned(),
        ),
        (
            "24.11",
            "pod16:16 ,ansys:2",
            "slurm.conf:1:19: Licenses = ,ansys:2: Slurm refuses text after a value; remove it, or the white space \
             before it"
                .to_owned(),
        ),
        (
            "22.05",
            "matlab:4,pod16=16",
            "slurm.conf:1:10: Licenses = matlab:4,pod16=16: Slurm 22.05 takes `=` for a part of the name; write \
             Licenses=matlab:4,pod16:16"
                .to_owned(),
        ),
    ] {
        let main = format!("Licenses={licenses}\n{REST}");
        assert_eq!(found(version, &main, &[]), [format!("error: {expected}")], "{licenses}");
    }
}

#[test]
fn a_list_of_licenses_that_slurm_accepts_has_no_finding() {
    for licenses in [
        "\"pod16:16\"",
        "pod16=16;matlab@server=4",
        ",pod16:16,,matlab:4;",
        "pod16:8,matlab,pod16:8",
        "flex/lm_2024.1+x:3,pod16:0",
    ] {
        let main = format!("Licenses={licenses}\n{REST}");
        assert_eq!(found("24.11", &main, &[]), Vec::<String>::new(), "{licenses}");
    }
}

#[test]
fn a_list_without_the_license_of_the_only_model_is_completed() {
    for (licenses, expected) in [
        (
            "matlab:4",
            "licenses.conf:1:10: Licenses = matlab:4: has no license of pod16; write Licenses=matlab:4,pod16:16, if \
             pod16 has 16 IPUs",
        ),
        (
            "matlab:4,pod61:16",
            "licenses.conf:1:10: Licenses = matlab:4,pod61:16: has no license of pod16; did you mean pod16 instead \
             of pod61?",
        ),
        (
            "pod16:x",
            "licenses.conf:1:10: license = pod16:x: a count is a whole number from 0 to 2147483647; write pod16:1, \
             for example",
        ),
    ] {
        let text = format!("Licenses={licenses}\n");
        let found = found(
            "24.11",
            "Include licenses.conf\nNodeName=n1\n",
            &[("licenses.conf", &text)],
        );
        assert_eq!(found, [format!("error: {expected}")], "{licenses}");
    }
}

#[test]
fn a_quotation_mark_in_a_changed_value_does_not_reach_the_rest_of_the_line() {
    for (line, changed) in [
        ("GresTypes=,\" \"", "GresTypes=,vipu \""),
        ("Licenses=\"\"\" x\"", "Licenses=,pod64:64 x\""),
    ] {
        let text = format!("{line}\n{NODE}");
        let rendered = render(&input(&text)).expect("a rendering");
        let new = file(&rendered, "slurm.conf").expect("a changed file");
        assert!(new.starts_with(&format!("{changed}\n")), "{new}");
    }
}
