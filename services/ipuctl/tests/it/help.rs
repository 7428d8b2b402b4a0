//! Help texts: short help without rare options, and lines of at most 80 columns in hand-written sections.

use crate::harness::Home;

/// Options that only the long help shows.
const RARE: [&str; 6] = [
    "--tls-ca",
    "--access-key-file",
    "--proxy-ca",
    "--proxy-token-file",
    "--timeout",
    "--state-dir",
];

#[test]
fn the_short_help_of_run_has_no_tls_and_proxy_options() {
    let home = Home::new();
    let (short, long) = (home.run(&["run", "-h"]).out, home.run(&["run", "--help"]).out);
    for option in RARE {
        assert!(!short.contains(option), "{option}: {short}");
        assert!(long.contains(option), "{option}: {long}");
    }
    for option in ["--placement ", "--preemption"] {
        assert!(short.contains(option), "{option}: {short}");
    }
    assert!(!short.contains("--proxy"), "{short}");
    assert!(short.lines().count() <= 45, "{short}");
}

#[test]
fn examples_and_exit_codes_fit_into_eighty_columns() {
    let home = Home::new();
    for command in [
        &["--help"][..],
        &["run", "--help"],
        &["plan", "--help"],
        &["decide", "--help"],
        &["query", "--help"],
        &["usage", "--help"],
        &["cordon", "--help"],
        &["drain", "--help"],
        &["render", "macvlan", "--help"],
        &["render", "memlock", "--help"],
    ] {
        let help = home.run(command).out;
        let (_, section) = help.split_once("\nExample").unwrap();
        for line in section.lines() {
            assert!(line.chars().count() < 80, "{command:?}: {line}");
        }
    }
    let help = home.run(&["--help"]).out;
    assert!(help.contains("\n  78     can never fit\n"), "{help}");
    assert!(
        help.contains("Mark hardware unschedulable; existing partitions are kept"),
        "{help}"
    );
    assert!(
        help.contains("Compute a plan from a job and its observed state (JSON)"),
        "{help}"
    );
}
