//! The reasons of queued requests on the page.

use std::collections::BTreeSet;

use ipu_core::hardware::Topology;
use reqwest::Method;
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::browser::Browser;
use super::{LIVE, cordon, put_on};
use crate::binary::{http, start};
use crate::placement::policy_file;
use crate::support::{Harness, POLL_INTERVAL, request_body};

/// Codes for requests that do not stay in the queue of these tests.
const NOT_SHOWN: [&str; 6] = [
    // A policy chooses free IPUs, or its choice is illegal.
    "Conflict",
    // The simulator always reports its hardware.
    "HardwareUnknown",
    // Until the next decision, and in events.
    "NextInLine",
    "Queued",
    // Of a partition.
    "Preempted",
    "UnknownController",
];

/// Page with the codes that it has shown.
struct ReasonsOnPage {
    browser: Browser,
    codes: BTreeSet<&'static str>,
}

impl ReasonsOnPage {
    /// Waits until the request `id` waits with `code`, and the page shows its reason.
    async fn wait_for(&mut self, proxy_url: &str, id: &str, code: &'static str) {
        let message = loop {
            let response = http().get(format!("{proxy_url}/v1/waiting")).send().await;
            let list: Value = response.unwrap().json().await.unwrap();
            let mut queue = list["waiting"].as_array().into_iter().flatten();
            let is_expected = |one: &&Value| one["id"] == id && one["reason"]["code"] == code;
            if let Some(request) = queue.find(is_expected) {
                break request["reason"]["message"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let shown = format!(
            "[...document.querySelectorAll('#queue tbody tr')].some((row) => \
             row.children[1].textContent.startsWith('{id} of ') && row.children[3].textContent === {})",
            Value::from(format!("{code} {message}"))
        );
        self.browser.until(&shown).await;
        self.codes.insert(code);
    }
}

/// Requests four IPUs, with changes of the request.
async fn request(proxy_url: &str, id: &str, changes: Value) {
    let mut body = request_body(id, 4);
    let changes = changes.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(changes);
    let put = http().put(format!("{proxy_url}/v1/partitions/{id}"));
    let response = put.json(&body).send().await.unwrap();
    response.error_for_status().unwrap();
}

async fn show_reasons_of_full_hardware(page: &mut ReasonsOnPage) {
    let harness = Harness::with("quotas: [{namespace: limited, max-ipus: 4}]").await;
    let url = &harness.proxy.url;
    page.browser.open(url, LIVE).await;
    put_on(&harness, "left", 4, &["a5"]).await;
    put_on(&harness, "block", 16, &["a1", "a2", "a3", "a4"]).await;
    let limited = json!({"kind": "Job", "namespace": "limited", "name": "l", "uid": "l"});
    request(url, "right", json!({"machines": ["a7"], "owner": limited})).await;
    // Free are a6 and a8.
    for (id, changes, code) in [
        ("full", json!({"owner": limited}), "QuotaExceeded"),
        ("overQuota", json!({"size": 8, "owner": limited}), "QuotaTooSmall"),
        ("large", json!({"size": 64}), "TooLarge"),
        (
            "pinned",
            json!({"size": 8, "machines": ["a7", "a8"]}),
            "PinnedIpusBusy",
        ),
        ("fragmented", json!({"size": 8}), "Fragmented"),
        ("many", json!({"size": 16}), "NotEnoughFree"),
    ] {
        request(url, id, changes).await;
        page.wait_for(url, id, code).await;
    }
    // As often as others may overtake a request.
    for _ in 0..16 {
        assert_eq!(harness.put("small", "small", 4).await.1["state"], "active");
        harness.call("DELETE", "/v1/partitions/small?wait=5s", "").await;
    }
    request(url, "late", json!({})).await;
    page.wait_for(url, "late", "HeldBackForEarlier").await;
    cordon(&harness, "six", "a6", "memory errors").await;
    cordon(&harness, "eight", "a8", "memory errors").await;
    request(url, "cordoned", json!({"priority": 1})).await;
    page.wait_for(url, "cordoned", "Cordoned").await;
    let foreign = json!({"requirements": {"id": "many", "size": 4}});
    harness
        .simulate(Method::POST, "/v1/partitions", Some(&foreign))
        .await;
    page.wait_for(url, "many", "ForeignPartition").await;
    harness.simulate(Method::DELETE, "/sim/agents/a8", None).await;
    // The proxy reads the hardware again for an allocation that it does not know.
    request(url, "elsewhere", json!({"allocation": "nowhere", "priority": 1})).await;
    page.wait_for(url, "elsewhere", "UnknownAllocation").await;
    page.wait_for(url, "pinned", "UnknownIpus").await;
    harness.start_outage().await;
    page.wait_for(url, "late", "ControllerUnavailable").await;
}

async fn show_reasons_of_policies(page: &mut ReasonsOnPage) {
    let folder = tempfile::tempdir().unwrap();
    for (answer, code) in [
        (r#"{"ok": null}"#, "Declined"),
        (r#"{"ok": {"linkDomain": 0, "first": 0, "size": 1}}"#, "Illegal"),
    ] {
        let placement = policy_file(folder.path(), answer);
        let harness = Harness::with(&format!("placement: {placement}")).await;
        page.browser.open(&harness.proxy.url, LIVE).await;
        request(&harness.proxy.url, "four", json!({})).await;
        page.wait_for(&harness.proxy.url, "four", code).await;
    }
}

/// Loses a failed partition whose IPUs the controller has chosen and never listed.
async fn show_reason_of_a_lost_partition(page: &mut ReasonsOnPage) {
    let harness = Harness::with("placement: delegated").await;
    let url = &harness.proxy.url;
    page.browser.open(url, LIVE).await;
    let late = json!([{"kind": "latency", "millis": 500, "method": "CreatePartition"}]);
    harness.set_faults(&late).await;
    request(url, "lost", json!({})).await;
    let unlisted = json!([{"kind": "refuse", "method": "ListPartitions"}]);
    harness.set_faults(&unlisted).await;
    while harness.ids_at_controller().await.is_empty() {}
    let bad = json!({"health": "bad"});
    harness.simulate(Method::POST, "/sim/ipus/a1/0", Some(&bad)).await;
    harness
        .until("/v1/partitions/lost", |shown| shown["state"] == "failed")
        .await;
    harness.lose_partitions().await;
    harness.end_outage().await;
    request(url, "four", json!({})).await;
    page.wait_for(url, "four", "LostPartition").await;
}

/// Shows the reasons of a controller with two names that refuses requests, and of an old ledger.
async fn show_reasons_of_a_doubled_controller(page: &mut ReasonsOnPage) {
    let simulator = Simulator::builder(Topology::pod16()).refuse_ipus();
    let simulator = simulator.start().await.unwrap();
    let port = simulator.addr().port();
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.db");
    let (first, second) = (format!("127.0.0.1:{port}"), format!("localhost:{port}"));
    let store = ledger.display();
    let arguments = format!("--controllers {first},{second} --store file:{store} --listen 127.0.0.1:0");
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let mut proxy = start(&arguments).await;
    page.browser.open(&proxy.url, "true").await;
    request(&proxy.url, "refused", json!({"controller": first})).await;
    page.wait_for(&proxy.url, "refused", "ControllerRefused").await;
    request(&proxy.url, "doubled", json!({"controller": second})).await;
    page.wait_for(&proxy.url, "doubled", "SameController").await;
    proxy.kill().await;
    // Without its lock file, a ledger is a copy.
    std::fs::remove_file(folder.path().join("ledger.db.lock")).unwrap();
    let proxy = start(&arguments).await;
    page.browser.open(&proxy.url, "true").await;
    page.wait_for(&proxy.url, "doubled", "NotConfirmed").await;
}

#[tokio::test]
async fn every_reason_of_the_queue_is_shown() {
    let Some(browser) = Browser::start("every_reason_of_the_queue_is_shown").await else {
        return;
    };
    let mut page = ReasonsOnPage {
        browser,
        codes: NOT_SHOWN.into(),
    };
    show_reasons_of_full_hardware(&mut page).await;
    show_reasons_of_policies(&mut page).await;
    show_reason_of_a_lost_partition(&mut page).await;
    show_reasons_of_a_doubled_controller(&mut page).await;
    let source = include_str!("../../../../../ipu-core/src/reason.rs");
    let (_, codes) = source.split_once("// A request waits.").unwrap();
    let (codes, _) = codes.split_once("// A partition.").unwrap();
    let codes = codes.lines().filter(|line| !line.contains("///"));
    let codes = codes.filter_map(|line| line.trim().strip_suffix(','));
    assert_eq!(page.codes, codes.collect());
    page.browser.close().await;
}
