//! Observability: usage, metrics, logs.

use serde_json::{Value, json};

use crate::installation::{PREFIX, SYSTEM, installed, installed_with_mpi, wait_until};

#[test]
fn section_6_9_any_pod_can_read_usage() {
    let name = "section_6_9_any_pod_can_read_usage";
    let Some(product) = installed_with_mpi(name).filter(|product| product.has_curl(name)) else {
        return;
    };
    product.kubectl(&["create", "namespace", "usage"]);
    product.submit("usage", "inference", str::to_owned);
    product.wait_for_phase("usage", "inference", "Running");
    product.kubectl(&["-n", "usage", "scale", "ipujob/inference", "--replicas=2"]);
    let proxy = format!("http://{PREFIX}-vipu-proxy.{SYSTEM}");
    let curl = format!(
        "curl -sS --fail-with-body {proxy}/stats; echo; curl -sS --fail-with-body --request POST \
         -H 'Content-Type: application/json' --data '{{\"size\":1}}' {proxy}/query"
    );
    wait_until("two IPUs are in use", || {
        let output = product.curl("usage", "default", &curl);
        let mut responses = output
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
        let (stats, query) = (
            responses.next().unwrap_or_default(),
            responses.next().unwrap_or_default(),
        );
        if stats["usage"]["used"] == 2
            && query["available"] == json!(true)
            && query["numOfPartitions"].is_u64()
        {
            Ok(())
        } else {
            Err(output)
        }
    });
    product.delete("usage", "inference");
}

#[test]
fn other_pods_read_only_usage_of_the_proxy_over_plain_http() {
    let name = "other_pods_read_only_usage_of_the_proxy_over_plain_http";
    let Some(product) = installed(name).filter(|product| product.has_curl(name)) else {
        return;
    };
    product.kubectl(&["create", "namespace", "curious"]);
    let path = "jsonpath={.data.ca\\.crt}";
    let secret = format!("{PREFIX}-vipu-proxy");
    let authorities = product.kubectl(&["-n", SYSTEM, "get", "secret", &secret, "-o", path]);
    let proxy = format!("{PREFIX}-vipu-proxy.{SYSTEM}.svc");
    let status = "curl -sS -o /dev/null -w '%{http_code}\\n'";
    let write = "-X DELETE";
    let output = product.curl(
        "curious",
        "default",
        &format!(
            "echo {authorities} | base64 -d >/tmp/ca.crt; {status} http://{proxy}/stats; {status} http://{proxy}/v1/partitions; \
             {status} {write} http://{proxy}/v1/partitions/p; {status} --cacert /tmp/ca.crt https://{proxy}/livez; \
             {status} --cacert /tmp/ca.crt https://{proxy}/v1/partitions; \
             {status} --cacert /tmp/ca.crt {write} https://{proxy}/v1/partitions/p"
        ),
    );
    let output: Vec<&str> = output.lines().collect();
    assert_eq!(output, ["200", "403", "403", "200", "401", "401"]);
}

#[test]
fn section_6_10_metrics_require_the_metrics_reader_role() {
    let name = "section_6_10_metrics_require_the_metrics_reader_role";
    let Some(product) = installed(name).filter(|product| product.has_curl(name)) else {
        return;
    };
    product.kubectl(&["create", "namespace", "monitoring"]);
    product.kubectl(&["-n", "monitoring", "create", "serviceaccount", "prometheus"]);
    // The certificate is the Service's; a ConfigMap has its CA, as the ServiceMonitor of the chart names it.
    let path = r"jsonpath={.data.ca\.crt}";
    let config_map = format!("{PREFIX}-admission");
    let bundle = product.kubectl(&["-n", SYSTEM, "get", "configmap", &config_map, "-o", path]);
    let scrape = format!(
        "echo '{bundle}' >/tmp/ca.crt; curl -sS --cacert /tmp/ca.crt -w '\\n%{{http_code}}' -H \"Authorization: Bearer \
         $(cat /var/run/secrets/kubernetes.io/serviceaccount/token)\" \
         https://{PREFIX}-controller-manager-metrics.{SYSTEM}.svc:8443/metrics"
    );
    let refused = product.curl("monitoring", "prometheus", &scrape);
    assert!(refused.ends_with("\n403"), "{refused}");
    let role = format!("--clusterrole={PREFIX}-metrics-reader");
    product.kubectl(&[
        "create",
        "clusterrolebinding",
        "metrics",
        &role,
        "--serviceaccount=monitoring:prometheus",
    ]);
    wait_until("the binding takes effect", || {
        let output = product.curl("monitoring", "prometheus", &scrape);
        if output.ends_with("\n200") && output.contains("ipu_operator_leader 1") {
            Ok(())
        } else {
            Err(output)
        }
    });
}
