//! Placement policies in WebAssembly modules, a feature of the program.

use crate::harness::Home;

#[cfg(not(feature = "wasm"))]
#[test]
fn without_the_feature_the_commands_of_policies_name_it() {
    let refused = Home::new().run(&["policy", "check", "policy.wasm"]);
    assert_eq!(refused.code, 64, "{refused:?}");
    assert!(refused.err.contains("--features wasm"), "{refused:?}");
}

/// Returns a home, and the file of a policy that declines every request.
#[cfg(feature = "wasm")]
fn home_with_a_policy() -> (Home, String) {
    let text = r#"(module
        (memory (export "memory") 1)
        (data (i32.const 8) "{\22ok\22: null}")
        (func (export "alloc") (param i32) (result i32) i32.const 1024)
        (func (export "choose") (param i32 i32) (result i64) i64.const 0x80000000c))"#;
    let home = Home::new();
    let file = home.path("policy.wasm");
    std::fs::write(&file, wat::parse_str(text).unwrap()).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (home, file)
}

#[cfg(feature = "wasm")]
#[test]
fn a_policy_that_declines_what_fits_fails_its_check_and_strands_every_job() {
    let (home, file) = home_with_a_policy();
    let checked = home.run(&["policy", "check", &file]);
    assert_eq!(checked.code, 65, "{checked:?}");
    assert!(
        checked.err.contains("it finds a block whenever one exists"),
        "{checked:?}"
    );
    let scores = home.json(&["policy", "score", &file, "--jobs", "20"]);
    assert_eq!(
        (&scores[0]["stranded"], &scores[1]["stranded"]),
        (&20.into(), &0.into()),
        "{scores}"
    );
    let scored = home.run(&["policy", "score", &file, "--jobs", "20"]);
    for part in [&*file, "first-fit", "best-fit", "mean wait"] {
        assert!(scored.out.contains(part), "{scored:?}");
    }
}

#[cfg(feature = "wasm")]
#[test]
fn nothing_fits_by_a_policy_that_declines() {
    let (home, file) = home_with_a_policy();
    let placement = format!("wasm:{file}");
    let refused = home.run(&["query", "4", "--placement", &placement]);
    assert_eq!(refused.code, 75, "{refused:?}");
    assert!(
        refused
            .out
            .starts_with("0 partitions of 4 IPUs fit now; 16 IPUs free"),
        "{refused:?}"
    );
}

#[test]
fn a_file_that_is_no_policy_is_an_error() {
    let refused = Home::new().run(&["query", "4", "--placement", "wasm:missing.wasm"]);
    assert_eq!(refused.code, 66, "{refused:?}");
    assert!(refused.err.contains("missing.wasm"), "{refused:?}");
}
