//! The vectors, `bindings/vectors.json`: requests with their answers, the same in every language.
//!
//! `UPDATE=1 cargo test -p ipu-core-wasm natively` writes the answers of this crate into the file. Review the
//! difference before you commit it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ipu_allocator::WasmPolicy;
use ipu_core::IpuCount;
use ipu_core::allocator::{CapacityBySize, Change, Outcome};
use ipu_core::hardware::{Block, Inventory};
use ipu_core::placement::{PlacementRequest, place};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const TARGET: &str = "wasm32-unknown-unknown";
const NO_TARGET: &str = "run `rustup target add wasm32-unknown-unknown`";

#[test]
fn the_vectors_hold_natively() {
    let path = bindings().join("vectors.json");
    let text = fs::read_to_string(&path).unwrap();
    let vectors: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut written = String::from("[");
    for vector in &vectors {
        let request = &vector["request"];
        let answer: Value =
            serde_json::from_slice(&ipu_core_wasm::call(request.to_string().as_bytes())).unwrap();
        let comma = if written.len() > 1 { "," } else { "" };
        write!(
            written,
            "{comma}\n{{\"name\": {},\n \"request\": {request},\n \"answer\": {answer}}}",
            vector["name"]
        )
        .unwrap();
    }
    written.push_str("\n]\n");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &written).unwrap();
    } else {
        let vectors: Value = serde_json::from_str(&written).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(vectors, expected, "UPDATE=1 accepts the actual answers");
    }
    assert!(vectors.len() >= 20);
}

#[test]
fn every_part_of_an_answer_is_read_back_as_its_type() {
    let text = fs::read_to_string(bindings().join("vectors.json")).unwrap();
    let vectors: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut parts = 0;
    for answer in vectors.iter().map(|vector| &vector["answer"]["ok"]) {
        if let Some(changes) = answer.get("changes") {
            assert_read_back::<Vec<Change>>(changes);
            assert_read_back::<Outcome>(&answer["outcome"]);
            parts += 1;
        } else if answer.get("fits").is_some_and(Value::is_array) {
            assert_read_back::<CapacityBySize>(answer);
            parts += 1;
        }
    }
    assert!(parts >= 5, "{parts}");
}

fn assert_read_back<T: Serialize + DeserializeOwned>(value: &Value) {
    let read: T = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), *value);
}

#[test]
fn any_bytes_have_an_answer() {
    for request in [
        &b""[..],
        b"{",
        b"\xff",
        b"null",
        b"{\"call\": \"place\"}",
        &[b'['; 10_000],
    ] {
        let answer: Value = serde_json::from_slice(&ipu_core_wasm::call(request)).unwrap();
        assert!(answer["error"].is_string(), "{answer}");
    }
}

#[test]
fn the_vectors_hold_in_python() {
    let script = "test_vectors.py";
    run(
        "the_vectors_hold_in_python",
        "python",
        "python3",
        &["-c", "import wasmtime"],
        &[script],
    );
}

#[test]
fn the_vectors_hold_in_go() {
    let test = ["test", "-count=1", "./..."];
    run("the_vectors_hold_in_go", "go", "go", &["version"], &test);
}

#[test]
fn the_vectors_hold_in_node() {
    let script = "test_vectors.mjs";
    run(
        "the_vectors_hold_in_node",
        "node",
        "node",
        &["--version"],
        &[script],
    );
}

#[test]
fn the_example_policy_spreads_partitions_over_link_domains() {
    let Some(file) = module("ipu-example-policy") else {
        println!("skipped: the_example_policy_spreads_partitions_over_link_domains: {NO_TARGET}");
        return;
    };
    let policy = WasmPolicy::load(&file).unwrap();
    let mut inventory = Inventory::new(&"4x16".parse().unwrap());
    for (holder, size, first) in [
        ("a", 4, (0, 0)),
        ("b", 64, (1, 0)),
        ("c", 4, (2, 0)),
        ("d", 8, (3, 0)),
    ] {
        let request = PlacementRequest::of_size(IpuCount::try_from(size).unwrap());
        let Ok(block) = place(&inventory, &request, &policy) else {
            panic!("{holder} fits")
        };
        assert_eq!((block.first().link_domain, block.first().ipu), first, "{holder}");
        inventory.occupy(holder.parse().unwrap(), block).unwrap();
    }
    inventory.vacate(&"b".parse().unwrap()).unwrap();
    inventory.vacate(&"c".parse().unwrap()).unwrap();
    let request = PlacementRequest::of_size(IpuCount::try_from(128).unwrap());
    let whole = Block::whole([1, 2]).unwrap();
    assert_eq!(place(&inventory, &request, &policy), Ok(whole));
}

/// Runs `program` in the folder of its language, with module and vectors as further arguments and the module
/// as a variable. `probe` fails where the language is not installed.
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
fn run(test: &str, folder: &str, program: &str, probe: &[&str], arguments: &[&str]) {
    let is_present = Command::new(program).args(probe).output();
    if !is_present.is_ok_and(|output| output.status.success()) {
        assert!(
            std::env::var_os("CI").is_none(),
            "`{program} {}` fails",
            probe.join(" ")
        );
        println!("skipped: {test}: `{program} {}` fails", probe.join(" "));
        return;
    }
    let Some(module) = module("ipu-core-wasm") else {
        println!("skipped: {test}: {NO_TARGET}");
        return;
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(bindings().join(folder))
        .env("IPU_CORE_WASM", &module);
    if program != "go" {
        command.arg(module).arg("../vectors.json");
    }
    let output = command.output().unwrap();
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}{}",
        printed(&output.stdout),
        printed(&output.stderr)
    );
}

/// Returns the module of `package`, after a build of all modules. None without their target, except under
/// `CI`.
fn module(package: &str) -> Option<PathBuf> {
    static IS_BUILT: OnceLock<bool> = OnceLock::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..");
    let is_built = IS_BUILT.get_or_init(|| {
        let library = Command::new("rustc")
            .args(["--print", "target-libdir", "--target", TARGET])
            .output();
        let library = String::from_utf8(library.unwrap().stdout).unwrap();
        if !Path::new(library.trim()).exists() {
            assert!(std::env::var_os("CI").is_none(), "{NO_TARGET}");
            return false;
        }
        let output = Command::new(env!("CARGO"))
            .args([
                "build",
                "--locked",
                "--profile",
                "wasm",
                "--target",
                TARGET,
                "--target-dir",
            ])
            .arg(&folder)
            .args(["--package", "ipu-core-wasm", "--package", "ipu-example-policy"])
            .current_dir(bindings())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        true
    });
    let file = format!("{}.wasm", package.replace('-', "_"));
    is_built.then(|| folder.join(TARGET).join("wasm").join(file))
}

fn bindings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}
