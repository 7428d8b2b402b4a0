//! The page at `/ui/` in a real browser: headless Chromium, driven through its own driver.

mod browser;
mod prefix;
mod queue_reasons;

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use self::browser::Browser;
use self::prefix::serve_under_prefix;
use crate::binary::{http, start};
use crate::events::Events;
use crate::server::proxy;
use crate::support::{Harness, request_body};

/// Time in which a person sees a change.
const SOON: Duration = Duration::from_secs(1);

/// The map is drawn and follows the events.
const LIVE: &str = "document.getElementById('connection').textContent === 'Live.' \
                    && document.querySelectorAll('.machine').length === 8";

async fn cordon(harness: &Harness, id: &str, machine: &str, reason: &str) {
    let body = json!({"id": id, "controller": harness.controller, "machine": machine, "reason": reason});
    let (status, answer) = harness.call("POST", "/v1/cordons", &body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
}

/// Requests a partition on these machines, or queues for them.
async fn put_on(harness: &Harness, id: &str, size: u32, machines: &[&str]) {
    let mut body = request_body(id, size);
    body["machines"] = json!(machines);
    body["maxRuntimeSeconds"] = json!(3600);
    let (_, answer) = harness
        .call("PUT", &format!("/v1/partitions/{id}"), &body.to_string())
        .await;
    assert!(answer["state"].is_string(), "{answer}");
    let state = if answer["state"] == "waiting" {
        "waiting"
    } else {
        "active"
    };
    harness
        .until(&format!("/v1/partitions/{id}"), |shown| shown["state"] == state)
        .await;
}

fn held(id: &str, ipus: u32) -> String {
    format!("document.querySelectorAll('[data-holder=\"{id}\"]').length === {ipus}")
}

#[tokio::test]
async fn a_partition_is_on_the_map_within_a_second_and_goes() {
    let harness = Harness::new().await;
    let Some(browser) = Browser::start("a_partition_is_on_the_map_within_a_second_and_goes").await else {
        return;
    };
    browser.open(&harness.proxy.url, LIVE).await;
    harness.put("p", "train", 8).await;
    let active = Instant::now();
    browser
        .until("document.querySelectorAll('[data-holder=p].active').length === 8")
        .await;
    assert!(active.elapsed() < SOON, "{:?}", active.elapsed());
    // By keyboard alone: the second machine of the link domain.
    browser.run("document.querySelector('.machine').focus()").await;
    browser.press("\u{E014}").await;
    browser.press("\u{E007}").await;
    let detail = browser.text("#detail").await;
    assert!(
        detail.contains("a2 of controller") && detail.contains("partition p of IPUJob default/train"),
        "{detail}"
    );
    harness.call("DELETE", "/v1/partitions/p?wait=5s", "").await;
    let gone = Instant::now();
    browser.until(&held("p", 0)).await;
    assert!(gone.elapsed() < SOON, "{:?}", gone.elapsed());
    browser
        .until("document.getElementById('detail').textContent.includes('free')")
        .await;
    browser.close().await;
}

#[tokio::test]
async fn a_newcomer_finds_the_five_answers() {
    let harness =
        Harness::with("quotas: [{namespace: default, max-ipus: 64}, {namespace: student, max-ipus: 8}]")
            .await;
    let Some(browser) = Browser::start("a_newcomer_finds_the_five_answers").await else {
        return;
    };
    put_on(&harness, "resnet", 16, &["a1", "a2", "a3", "a4"]).await;
    put_on(&harness, "bert", 8, &["a5", "a6"]).await;
    cordon(&harness, "fan", "a8", "fan is replaced").await;
    harness.put("waits", "gpt", 16).await;
    browser.open(&harness.proxy.url, LIVE).await;
    browser
        .until("document.querySelectorAll('#queue tbody tr').length === 1")
        .await;

    // The holder of machine a3.
    browser.find_on_page("a3").await;
    browser
        .until("document.getElementById('detail').textContent.includes('held since')")
        .await;
    let detail = browser.text("#detail").await;
    assert!(
        detail.contains("partition resnet of IPUJob default/resnet"),
        "{detail}"
    );
    // Why does the job wait, and behind whom?
    let queue = browser.text("#queue").await;
    assert!(
        queue.contains("waits of IPUJob default/gpt") && queue.contains("NotEnoughFree"),
        "{queue}"
    );
    browser.click("#queue button").await;
    browser
        .until("document.querySelectorAll('.ipu.marked').length >= 8")
        .await;
    browser.screenshot("page.png").await;
    // Would 16 fit if that ended?
    browser.fill("#sizes", "16").await;
    browser.fill("#ended", "default/resnet").await;
    browser.click("#plan-form button").await;
    browser
        .until("document.getElementById('plan').textContent.includes('16 IPUs fit at')")
        .await;
    browser.fill("#ended", "nothing").await;
    browser.click("#plan-form button").await;
    browser
        .until("document.getElementById('plan').textContent.includes('no partition or job nothing')")
        .await;
    browser.fill("#ended", "").await;
    browser.click("#plan-form button").await;
    browser
        .until("document.getElementById('plan').textContent.includes('if all of these ended')")
        .await;
    // Cordons and their owners.
    let cordons = browser.text("#cordons").await;
    assert!(
        cordons.contains("/a8") && cordons.contains("fan is replaced"),
        "{cordons}"
    );
    let owner = &harness.get("/v1/cordons").await["cordons"][0]["owner"];
    assert!(cordons.contains(owner.as_str().unwrap()), "{cordons}");
    let quotas = browser.text("#quotas").await;
    assert!(
        quotas.contains("24 of 64") && quotas.contains("0 of 8"),
        "{quotas}"
    );
    // Which controller is silent since when?
    harness.start_outage().await;
    browser
        .until("document.querySelector('#map .note')?.textContent.startsWith('Silent since')")
        .await;
    let silent = harness.get("/v1/map").await["controllers"][0]["silentSince"].clone();
    let shown = browser
        .run("return Date.parse(document.querySelector('#controllers time').dateTime)")
        .await;
    assert_eq!(shown, silent);
    // The last answer stays on the map.
    browser
        .until(&format!(
            "{} && document.getElementById('detail').textContent.includes('silent since')",
            held("resnet", 16)
        ))
        .await;
    assert!(browser.text("#detail").await.contains("default/resnet"));
    browser.screenshot("page-silent.png").await;
    harness.end_outage().await;
    browser
        .until("document.getElementById('controllers').textContent.includes('available')")
        .await;
    browser.close().await;
}

#[tokio::test]
async fn ipus_of_other_programs_and_bad_ones_have_their_letters() {
    let harness = Harness::new().await;
    let Some(browser) = Browser::start("ipus_of_other_programs_and_bad_ones_have_their_letters").await else {
        return;
    };
    browser.open(&harness.proxy.url, LIVE).await;
    put_on(&harness, "lost", 4, &["a5"]).await;
    harness.lose_partitions().await;
    put_on(&harness, "held", 4, &["a8"]).await;
    // The repair quarantines the second one: its id has the form of this project.
    for id in ["mine", "p-0-aaaaaaaaaaaaaaaa"] {
        let body = json!({"requirements": {"id": id, "size": 4}});
        harness
            .simulate(Method::POST, "/v1/partitions", Some(&body))
            .await;
    }
    harness.call("POST", "/v1/repair", "").await;
    cordon(&harness, "fan", "a7", "fan is replaced").await;
    let bad = json!({"health": "bad"});
    for machine in ["a6", "a8"] {
        let path = format!("/sim/ipus/{machine}/3");
        harness.simulate(Method::POST, &path, Some(&bad)).await;
    }
    for (state, letters) in [
        ("active", "A! A A A"),
        ("failed", "E E E E"),
        ("quarantined", "Q Q Q Q"),
        ("foreign", "X X X X"),
        ("cordoned", "C C C C"),
        ("unhealthy", "U"),
        ("free", "F F F F F F F F F F F"),
    ] {
        browser
            .until(&format!(
                "[...document.querySelectorAll('#map .ipu.{state}')].map((one) => one.textContent).join(' ') === '{letters}'"
            ))
            .await;
    }
    let label = "document.querySelector('[data-machine=a8]').getAttribute('aria-label')";
    let expected = "a8. IPU 0: active, partition held of IPUJob default/held, unhealthy. IPUs 1 to 3: active";
    browser
        .until(&format!("{label}.startsWith({})", json!(expected)))
        .await;
    browser.close().await;
}

#[tokio::test]
async fn the_page_is_old_after_a_break_and_live_when_the_proxy_is_back() {
    let Some(browser) = Browser::start("the_page_is_old_after_a_break_and_live_when_the_proxy_is_back").await
    else {
        return;
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let listen = format!("127.0.0.1:{port}");
    let arguments = [
        "--sim",
        "1x8",
        "--sim-listen",
        "127.0.0.1:0",
        "--auth",
        "none",
        "--listen",
        &listen,
    ];
    let mut first = start(&arguments).await;
    browser.open(&first.url, LIVE).await;
    first.kill().await;
    browser
        .until("document.getElementById('connection').textContent.startsWith('Old since')")
        .await;
    let age = browser
        .run("return Date.now() - Date.parse(document.querySelector('#connection time').dateTime)")
        .await;
    // The proxy sends a comment every 15 seconds.
    assert!(age.as_i64().unwrap() < 20_000, "{age}");
    let second = start(&arguments).await;
    browser.until(LIVE).await;
    let put = http().put(format!("{}/v1/partitions/p?wait=5s", second.url));
    put.json(&request_body("p", 4)).send().await.unwrap();
    browser.until(&held("p", 4)).await;
    browser.close().await;
}

#[tokio::test]
async fn ten_thousand_events_never_stall_the_page() {
    const PARTITIONS: u32 = 16;
    const EVENTS: usize = 10_000;
    let harness = Harness::new().await;
    let Some(browser) = Browser::start("ten_thousand_events_never_stall_the_page").await else {
        return;
    };
    for number in 0..PARTITIONS {
        let mut body = request_body("held", 1);
        body["leaseSeconds"] = json!(600);
        let path = format!("/v1/partitions/p{number}?wait=5s");
        harness.call("PUT", &path, &body.to_string()).await;
    }
    browser.open(&harness.proxy.url, LIVE).await;
    browser
        .run(
            "window.stalls = []; new PerformanceObserver((list) => stalls.push(...list.getEntries().map((one) => one.duration))) \
             .observe({ type: 'longtask' })",
        )
        .await;
    let mut events = Events::open(&harness, None).await;
    let begun = Instant::now();
    let url = &harness.proxy.url;
    let beats = (0..PARTITIONS).map(|number| async move {
        let client = http();
        for beat in 0..=EVENTS / PARTITIONS as usize {
            let post = client.post(format!("{url}/v1/partitions/p{number}/heartbeat"));
            let sent = post.json(&json!({"seconds": 1_000 + beat})).send().await.unwrap();
            assert_eq!(sent.status(), 200);
        }
    });
    let count = async {
        for _ in 0..EVENTS {
            events.until_change().await;
        }
    };
    tokio::join!(futures::future::join_all(beats), count);
    let took = begun.elapsed();
    harness.put("last", "last", 4).await;
    browser.until(&held("last", 4)).await;
    let stalls = browser.run("return stalls").await;
    let longest = stalls
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_f64)
        .fold(0.0, f64::max);
    // 200 ms if the events take ten seconds; a busy machine draws as slowly as it sends.
    let limit = (took.as_secs_f64() * 20.0).max(200.0);
    assert!(
        longest < limit,
        "{longest} ms in {EVENTS} events within {took:?}: {stalls}"
    );
    browser.close().await;
}

#[tokio::test]
async fn text_of_users_is_never_markup() {
    const KIND: &str = "<img/src=x/onerror=document.title='x'>";
    const REASON: &str = "<script>document.title='x'</script><b>bold</b>";
    let harness = Harness::new().await;
    let Some(browser) = Browser::start("text_of_users_is_never_markup").await else {
        return;
    };
    let mut body = request_body("evil", 32);
    body["owner"]["kind"] = json!(KIND);
    harness
        .call("PUT", "/v1/partitions/evil?wait=5s", &body.to_string())
        .await;
    cordon(&harness, "evil", "a1", REASON).await;
    body["owner"]["name"] = json!("second");
    harness
        .call("PUT", "/v1/partitions/second", &body.to_string())
        .await;
    browser.open(&harness.proxy.url, LIVE).await;
    browser
        .until("document.querySelectorAll('#queue tbody tr').length === 1")
        .await;
    browser.find_on_page("a1").await;
    for place in ["#queue", "#detail"] {
        let text = browser.text(place).await;
        assert!(text.contains(KIND), "{place}: {text}");
    }
    assert!(browser.text("#cordons").await.contains(REASON));
    let foreign = browser
        .run("return document.querySelectorAll('img, b, script:not([src])').length")
        .await;
    assert_eq!(
        (foreign, browser.run("return document.title").await),
        (json!(0), json!("IPUs"))
    );
    browser.close().await;
}

#[tokio::test]
async fn the_page_has_no_fault_of_accessibility_in_light_and_dark_and_fits_320_pixels() {
    let test = "the_page_has_no_fault_of_accessibility_in_light_and_dark_and_fits_320_pixels";
    let harness = Harness::with("quotas: [{namespace: default, max-ipus: 64}]").await;
    let (Some(axe), Some(browser)) = (browser::axe(test), Browser::start(test).await) else {
        return;
    };
    put_on(&harness, "resnet", 16, &["a1", "a2", "a3", "a4"]).await;
    cordon(&harness, "fan", "a8", "fan is replaced").await;
    harness.put("waits", "gpt", 32).await;
    browser.open(&harness.proxy.url, LIVE).await;
    browser
        .until("document.querySelectorAll('#queue tbody tr').length === 1")
        .await;
    browser.find_on_page("a3").await;
    browser.run(&axe).await;
    for scheme in ["light", "dark"] {
        for (width, state) in [(1280, "live"), (320, "live"), (320, "old")] {
            browser.emulate(scheme, width).await;
            browser
                .run(&format!(
                    "document.body.classList.toggle('old', {})",
                    state == "old"
                ))
                .await;
            let violations = browser.check_accessibility().await;
            assert_eq!(violations, json!([]), "{scheme}, {width} px, {state}");
            let overflow = "return document.documentElement.scrollWidth > innerWidth";
            assert_eq!(browser.run(overflow).await, false, "{width} px");
        }
    }
    browser.close().await;
}

#[tokio::test]
async fn a_token_is_asked_for_where_reads_are_closed_and_forgotten_on_reload() {
    const TOKEN: &str = "0123456789abcdef-reader";
    let test = "a_token_is_asked_for_where_reads_are_closed_and_forgotten_on_reload";
    let Some(browser) = Browser::start(test).await else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let tokens = scratch.path().join("tokens");
    std::fs::write(&tokens, format!("{TOKEN} reader\n")).unwrap();
    let running = proxy(|settings| {
        settings.reading = Some(vipu_proxy::ReadAccess::Closed);
        settings.token_file = Some(tokens);
    })
    .await;
    let asks = "!document.getElementById('token-form').hidden";
    browser.open(&format!("http://{}", running.addr()), asks).await;
    browser.fill("#token", "0123456789abcdef-wrong").await;
    browser.click("#token-form button").await;
    browser
        .until(&format!(
            "{asks} && document.getElementById('token').value === ''"
        ))
        .await;
    browser.fill("#token", TOKEN).await;
    browser.click("#token-form button").await;
    browser
        .until("document.getElementById('connection').textContent === 'Live.'")
        .await;
    let kept = "return localStorage.length + sessionStorage.length + document.cookie.length + location.href.indexOf('?') + 1";
    assert_eq!(browser.run(kept).await, 0);
    browser.open(&format!("http://{}", running.addr()), asks).await;
    browser.close().await;
    running.shutdown().await;
}

#[tokio::test]
async fn the_page_works_behind_a_prefix_that_replaces_the_host() {
    let harness = Harness::new().await;
    let Some(browser) = Browser::start("the_page_works_behind_a_prefix_that_replaces_the_host").await else {
        return;
    };
    harness.put("p", "train", 4).await;
    let prefix = serve_under_prefix(
        &harness.proxy.url,
        "/api/v1/namespaces/ipu/services/vipu-proxy/proxy",
    )
    .await;
    browser.open(&prefix, LIVE).await;
    browser.until(&held("p", 4)).await;
    browser.fill("#sizes", "4").await;
    browser.click("#plan-form button").await;
    browser
        .until("document.getElementById('plan').textContent.includes('4 IPUs fit at')")
        .await;
    browser.close().await;
}

#[tokio::test]
async fn a_link_of_another_site_leads_to_the_page_and_its_frame_does_not() {
    let harness = Harness::new().await;
    let get = harness.http.get(format!("{}/ui/", harness.proxy.url));
    let response = get.header("sec-fetch-site", "cross-site").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let policy = response.headers()["content-security-policy"].to_str().unwrap();
    assert!(
        policy.starts_with("default-src 'self';") && policy.contains("frame-ancestors 'none'"),
        "{policy}"
    );
    let missing = harness.call("GET", "/ui/other.js", "").await;
    assert_eq!(
        (missing.0.as_u16(), &missing.1["code"]),
        (404, &json!("NoSuchRoute"))
    );
}
