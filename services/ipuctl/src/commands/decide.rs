//! `ipuctl decide`: the core for programs in other languages. Reads a job and its observed state, prints the
//! plan.

use std::path::Path;

use ipu_core::job::{Limits, Observation, Plan, RawJob, Violation, Warning, check_plan, plan};
use serde::{Deserialize, Serialize};

use crate::cli::{Decide, Format};
use crate::exit_code::{Code, Failure};
use crate::input::read_input;
use crate::output::Output;
use crate::table;

/// Version of request and response.
const FORMAT_VERSION: u32 = 1;
/// Maximum size of a request in bytes: an observation of thousands of processes with 2 KiB of output each.
const MAX_INPUT_BYTES: u64 = 64 << 20;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    format: u32,
    job: RawJob,
    observation: Observation,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DecideOutput {
    format: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
    warnings: Vec<Warning>,
    violations: Vec<Violation>,
}

/// Prints the plan for one request. The version is checked first, so that the error names a newer one.
pub(crate) fn run(arguments: &Decide, format: Format, output: &Output) -> Result<Code, Failure> {
    let file = arguments.file.as_deref().unwrap_or(Path::new("-"));
    let value: serde_json::Value = serde_json::from_str(&read_input(file, MAX_INPUT_BYTES)?)
        .map_err(|error| Failure::because(Code::Data, "the request is not JSON", error))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(found) if found == u64::from(FORMAT_VERSION) => {}
        Some(found) => {
            return Err(Failure::new(
                Code::Data,
                format!("format = {found}: this version supports format {FORMAT_VERSION}"),
            ));
        }
        None => {
            return Err(Failure::new(
                Code::Data,
                format!("format is missing: set \"format\": {FORMAT_VERSION}"),
            ));
        }
    }
    let request: Request = serde_json::from_value(value).map_err(|error| {
        Failure::because(Code::Data, "the request does not have the documented form", error)
    })?;
    debug_assert_eq!(request.format, FORMAT_VERSION);
    if request.observation.format != Observation::FORMAT {
        let found = request.observation.format;
        return Err(Failure::new(
            Code::Data,
            format!(
                "observation.format = {found}: this version supports format {}",
                Observation::FORMAT
            ),
        ));
    }
    let (response, code) = match request.job.parse(&Limits::default()) {
        Err(violations) => (
            DecideOutput {
                format: FORMAT_VERSION,
                plan: None,
                warnings: Vec::new(),
                violations: violations.into_iter().collect(),
            },
            Code::Data,
        ),
        Ok(parsed) => {
            let plan = plan(&parsed.spec, &request.observation);
            if let Some(violation) = check_plan(&parsed.spec, &request.observation, &plan).first() {
                return Err(Failure::new(
                    Code::Bug,
                    format!("the plan violates a rule: {violation}"),
                ));
            }
            (
                DecideOutput {
                    format: FORMAT_VERSION,
                    plan: Some(plan),
                    warnings: parsed.warnings,
                    violations: Vec::new(),
                },
                Code::Done,
            )
        }
    };
    let format = if format.is_text() { Format::Json } else { format };
    output.result(&table::render(format, &response, String::new)?);
    Ok(code)
}
