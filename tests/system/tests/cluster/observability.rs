//! Observability: usage, metrics, logs.

use crate::installation::{PREFIX, SYSTEM, installed, wait_until};

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
    let query = "-H 'Content-Type: application/json' --data '{\"size\":1}'";
    let write = "-X DELETE";
    let output = product.curl(
        "curious",
        "default",
        &format!(
            "echo {authorities} | base64 -d >/tmp/ca.crt; \
             {status} http://{proxy}/stats; {status} {query} http://{proxy}/query; \
             {status} http://{proxy}/v1/partitions; {status} {write} http://{proxy}/v1/partitions/p; \
             {status} --cacert /tmp/ca.crt https://{proxy}/livez; \
             {status} --cacert /tmp/ca.crt https://{proxy}/v1/partitions; \
             {status} --cacert /tmp/ca.crt {write} https://{proxy}/v1/partitions/p"
        ),
    );
    let output: Vec<&str> = output.lines().collect();
    assert_eq!(output, ["200", "200", "403", "403", "200", "401", "401"]);
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
    let scrape = |header: &str| {
        let script = format!(
            "echo '{bundle}' >/tmp/ca.crt; curl -sS --cacert /tmp/ca.crt -w '\\n%{{http_code}}' {header} \
             https://{PREFIX}-controller-manager-metrics.{SYSTEM}.svc:8443/metrics"
        );
        product.curl("monitoring", "prometheus", &script)
    };
    for header in ["", "-H 'Authorization: Bearer a.b.c'"] {
        let refused = scrape(header);
        assert!(refused.ends_with("\n401"), "{header}: {refused}");
    }
    let own_token = "-H \"Authorization: Bearer $(cat /var/run/secrets/kubernetes.io/serviceaccount/token)\"";
    let refused = scrape(own_token);
    assert!(
        refused.contains("system:serviceaccount:monitoring:prometheus") && refused.ends_with("\n403"),
        "{refused}"
    );
    let role = format!("--clusterrole={PREFIX}-metrics-reader");
    product.kubectl(&[
        "create",
        "clusterrolebinding",
        "metrics",
        &role,
        "--serviceaccount=monitoring:prometheus",
    ]);
    wait_until("the binding takes effect", || {
        let output = scrape(own_token);
        if output.ends_with("# EOF\n\n200") && output.contains("ipu_operator_leader 1") {
            Ok(())
        } else {
            Err(output)
        }
    });
}
