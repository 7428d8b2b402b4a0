//! Prints the jobs of a manifest, or all its violations.
//!
//! `cargo run -p ipu-k8s --example read_manifest -- FILE`; without a file it reads one of the documented
//! examples.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;

use ipu_core::job::Limits;
use ipu_k8s::crd::{Document, read_manifests};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/training-mpirun.yaml");

fn describe(text: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut lines = Vec::new();
    // A cluster gives every object a uid; a file on the way there has none yet.
    let uid = "metadata.uid=not-submitted".parse()?;
    for document in read_manifests(text, &[uid])? {
        let Document::IpuJob(manifest) = document else {
            lines.push("not an IPUJob: left alone".to_owned());
            continue;
        };
        match manifest.parse(&Limits::default()) {
            Ok(parsed) => {
                let job = &parsed.spec;
                lines.push(format!(
                    "{}: {} × {} IPUs",
                    job.key(),
                    job.instances(),
                    job.partition().size
                ));
                lines.extend(parsed.warnings.iter().map(|warning| format!("  note: {warning}")));
            }
            Err(violations) => lines.extend(violations.iter().map(ToString::to_string)),
        }
    }
    Ok(lines)
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| EXAMPLE.to_owned());
    for line in describe(&std::fs::read_to_string(file)?)? {
        println!("{line}");
    }
    Ok(())
}

#[test]
fn it_describes_the_documented_example() {
    let text = std::fs::read_to_string(EXAMPLE).expect("the example is there");
    let lines = describe(&text).expect("the example is YAML");
    assert!(lines.iter().any(|line| line.contains("IPUs")), "{lines:?}");
}
