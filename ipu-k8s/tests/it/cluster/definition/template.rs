//! The Pod template of a job compared with that of Kubernetes.

use serde_json::{Value, json};

use super::CrdFixture;

#[test]
fn the_template_of_a_job_is_the_pod_template_of_this_api_server() {
    let name = "the_template_of_a_job_is_the_pod_template_of_this_api_server";
    let Some(fixture) = CrdFixture::new(name, "template") else {
        return;
    };
    let read =
        |path: &str| -> Value { serde_json::from_str(&fixture.kubectl(&["get", "--raw", path])).unwrap() };
    let core = read("/openapi/v3/api/v1");
    let ours = read("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ipujobs.graphcore.ai");
    let template =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/workers/properties/template";
    let theirs = json!({"$ref": "#/components/schemas/io.k8s.api.core.v1.PodTemplateSpec"});
    let mut compared = 0;
    compare(
        ours.pointer(template).unwrap(),
        &theirs,
        &core,
        "template",
        &mut compared,
    );
    assert!(compared > 500, "{compared}");
}

/// Compares every part of our schema with the Kubernetes schema.
fn compare(ours: &Value, theirs: &Value, core: &Value, path: &str, compared: &mut u32) {
    let reference = theirs["$ref"]
        .as_str()
        .or_else(|| theirs["allOf"][0]["$ref"].as_str());
    let theirs = reference.map_or(theirs, |reference| {
        core.pointer(reference.trim_start_matches('#')).unwrap()
    });
    *compared += 1;
    if reference.is_some_and(|name| name.ends_with(".ObjectMeta")) {
        return;
    }
    if ours["x-kubernetes-int-or-string"] == true {
        assert!(theirs["oneOf"].is_array(), "{path}");
        return;
    }
    assert_eq!(ours["type"], theirs["type"], "{path}");
    let names = |schema: &Value| -> Vec<String> {
        let names = schema["properties"].as_object();
        names
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect()
    };
    assert_eq!(names(ours), names(theirs), "{path}");
    let required = |schema: &Value| {
        let mut all = schema["required"].as_array().cloned().unwrap_or_default();
        all.sort_by_key(Value::to_string);
        all
    };
    assert_eq!(required(ours), required(theirs), "{path}");
    for name in names(ours) {
        let (ours, theirs) = (&ours["properties"][&name], &theirs["properties"][&name]);
        compare(ours, theirs, core, &format!("{path}.{name}"), compared);
    }
    for inner in ["items", "additionalProperties"] {
        if ours[inner].is_object() {
            compare(&ours[inner], &theirs[inner], core, &format!("{path}[]"), compared);
        }
    }
}
