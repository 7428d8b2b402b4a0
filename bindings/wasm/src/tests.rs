//! The JSON schema of the calls, `bindings/schema.json`.
//!
//! `UPDATE=1 cargo test -p ipu-core-wasm schema` writes it. Review the difference before you commit it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ipu_core::allocator::CapacityBySize;
use ipu_core::job::Plan;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use crate::{Placed, Request, Stepped};

/// Returns the schema of a request. `$defs` has the answers, too: `place_answer` and so on.
fn schema() -> Value {
    let mut generator = SchemaGenerator::default();
    let answers = [
        answer::<Placed>(&mut generator, "place"),
        answer::<CapacityBySize>(&mut generator, "fits"),
        answer::<Plan>(&mut generator, "plan"),
        answer::<Vec<String>>(&mut generator, "check"),
        answer::<Stepped>(&mut generator, "allocator_step"),
    ];
    let mut schema = generator.into_root_schema_for::<Request>();
    RecursiveTransform(without_example).transform(&mut schema);
    let mut schema = schema.to_value();
    schema["$defs"].as_object_mut().unwrap().extend(answers);
    schema
}

fn answer<T: JsonSchema>(generator: &mut SchemaGenerator, call: &str) -> (String, Value) {
    let ok = generator.subschema_for::<T>();
    let error = json!({"type": "string"});
    let forms = [("ok", ok.to_value()), ("error", error)].map(|(key, form)| {
        json!({"type": "object", "properties": {key: form}, "required": [key], "additionalProperties": false})
    });
    (format!("{call}_answer"), json!({"oneOf": forms}))
}

/// Cuts the Rust example off a description.
fn without_example(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description")
        && let Some((prose, _)) = text.split_once("\n\n```")
    {
        *text = prose.to_owned();
    }
}

/// Returns the text of the schema, with one definition in a line.
fn text(schema: &Value) -> String {
    let mut schema = schema.clone();
    let definitions = schema["$defs"].take();
    let mut text = format!("{{\"$schema\": {},\n\"$defs\": {{", schema["$schema"]);
    let mut comma = "";
    for (name, definition) in definitions.as_object().unwrap() {
        write!(text, "{comma}\n\"{name}\": {definition}").unwrap();
        comma = ",";
    }
    let requests = &schema["oneOf"];
    write!(text, "\n}},\n\"oneOf\": {requests}}}\n").unwrap();
    text
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(file(name)).unwrap()).unwrap()
}

#[test]
fn the_schema_is_that_of_the_types() {
    let text = text(&schema());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(file("schema.json"), &text).unwrap();
    }
    let expected = fs::read_to_string(file("schema.json")).unwrap();
    assert_eq!(text, expected, "UPDATE=1 accepts the actual schema");
}

#[test]
fn requests_and_answers_are_valid_by_the_schema_and_misspelt_ones_are_not() {
    let schema = read("schema.json");
    let requests = jsonschema::validator_for(&schema).unwrap();
    for vector in read("vectors.json").as_array().unwrap() {
        let (name, mut request) = (&vector["name"], vector["request"].clone());
        let call = request["call"].as_str().unwrap();
        let Some(form) = schema["$defs"].get(format!("{call}_answer")) else {
            assert!(!requests.is_valid(&request), "{name}");
            continue;
        };
        let form = json!({"allOf": [form], "$defs": schema["$defs"]});
        let answers = jsonschema::validator_for(&form).unwrap();
        let mut answer = vector["answer"].clone();
        assert!(answers.is_valid(&answer), "{name}: {answer}");
        assert!(
            answer.get("error").is_some() || requests.is_valid(&request),
            "{name}: {request}"
        );
        answer["misspelt"] = Value::Null;
        assert!(!answers.is_valid(&answer), "{name}");
        request["misspelt"] = Value::Null;
        assert!(!requests.is_valid(&request), "{name}");
    }
}
