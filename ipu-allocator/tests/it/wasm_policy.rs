//! Policies in WebAssembly modules that fail or exceed a limit: each declines, and none has an effect.

use ipu_allocator::{WasmPolicy, WasmPolicyError};
use ipu_core::hardware::{Inventory, Topology};
use ipu_core::placement::{PlacementRequest, place};
use ipu_core::{IpuCount, Reason};

/// Loads a policy that declines in the test choice, whose request is the shortest, and then runs `code` and
/// answers with the text at the address 64.
fn policy(code: &str, answer: &str) -> WasmPolicy {
    let text = format!(
        r#"(module
            (memory (export "memory") 1)
            (data (i32.const 8) "{{\22ok\22: null}}")
            (data (i32.const 64) "{}")
            (func (export "alloc") (param i32) (result i32) i32.const 1024)
            (func (export "choose") (param i32 i32) (result i64)
                (if (i32.lt_u (local.get 1) (i32.const 100)) (then (return (i64.const {}))))
                {code}
                (i64.const {})))"#,
        answer.replace('"', "\\22"),
        8_u64 << 32 | 12,
        64_u64 << 32 | answer.len() as u64
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), wat::parse_str(text).unwrap()).unwrap();
    WasmPolicy::load(file.path()).unwrap()
}

/// Places four IPUs in an IPU-POD64, and returns the code of the reason; none if it fits.
fn place_four(policy: &WasmPolicy) -> Option<String> {
    let request = PlacementRequest::of_size(IpuCount::try_from(4).unwrap());
    match place(&Inventory::new(&Topology::pod64()), &request, policy) {
        Ok(_) => None,
        Err(why) => Some(Reason::from(why).code.as_str().to_owned()),
    }
}

#[test]
fn a_policy_that_fails_or_exceeds_a_limit_declines() {
    let good = r#"{"ok": {"linkDomain": 0, "first": 8, "size": 4}}"#;
    assert_eq!(place_four(&policy("", good)), None);
    let cases = [
        ("a trap", "unreachable", good, "Declined"),
        ("no end", "(loop (br 0))", good, "Declined"),
        (
            "no end of calls",
            "(drop (call 1 (i32.const 0) (i32.const 999)))",
            good,
            "Declined",
        ),
        (
            "more memory",
            "(if (i32.lt_s (memory.grow (i32.const 2000)) (i32.const 0)) (then unreachable))",
            good,
            "Declined",
        ),
        (
            "an answer outside of the memory",
            "(return (i64.const -1))",
            good,
            "Declined",
        ),
        ("no JSON", "", "garbage", "Declined"),
        (
            "no block",
            "",
            r#"{"ok": {"linkDomain": 0, "first": 2, "size": 3}}"#,
            "Declined",
        ),
        ("an error", "", r#"{"error": "out of ideas"}"#, "Declined"),
        ("nothing", "", r#"{"ok": null}"#, "Declined"),
        (
            "another size",
            "",
            r#"{"ok": {"linkDomain": 0, "first": 8, "size": 2}}"#,
            "Illegal",
        ),
        (
            "no such IPUs",
            "",
            r#"{"ok": {"linkDomain": 9, "first": 8, "size": 4}}"#,
            "Illegal",
        ),
    ];
    for (name, code, answer, reason) in cases {
        assert_eq!(
            place_four(&policy(code, answer)).as_deref(),
            Some(reason),
            "{name}"
        );
    }
}

#[test]
fn a_module_with_an_import_or_without_an_export_is_no_policy() {
    let memory = r#"(memory (export "memory") 1)"#;
    for text in [
        format!(r#"(module (import "env" "now" (func (result i64))) {memory})"#),
        format!(r#"(module {memory})"#),
        "(module)".to_owned(),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), wat::parse_str(text).unwrap()).unwrap();
        let error = WasmPolicy::load(file.path()).unwrap_err();
        assert!(matches!(error, WasmPolicyError::TestChoice(_)), "{error}");
    }
}
