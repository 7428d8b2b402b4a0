//! `ipuctl top`, into a pipe and on a terminal, which `script` of util-linux provides.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::harness::Running;
use crate::proxy::ProxyFixture;

/// Time in which a change is on the screen, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A terminal with the view.
struct Terminal {
    process: Child,
    bytes: Receiver<Vec<u8>>,
    received: Vec<u8>,
    screen: vt100::Parser,
}

/// Returns whether there is a `script`; prints a message otherwise, except in CI.
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
fn has_script(test: &str) -> bool {
    let is_installed = Command::new("script").arg("--version").output().is_ok();
    assert!(
        is_installed || std::env::var_os("CI").is_none(),
        "{test} needs script(1)"
    );
    if !is_installed {
        println!("skipped: {test}: it needs script(1)");
    }
    is_installed
}

impl Terminal {
    /// Starts the view.
    fn start(fixture: &ProxyFixture, environment: &str, rows: u16) -> Self {
        let (program, url) = (env!("CARGO_BIN_EXE_ipuctl"), &fixture.url);
        let inner = format!("stty rows {rows} cols 80; env {environment} '{program}' --proxy {url} top");
        let mut command = Command::new("script");
        command
            .args(["-qefc", &inner, "/dev/null"])
            .env("SHELL", "/bin/sh");
        for name in ["NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG"] {
            command.env_remove(name);
        }
        let piped = command
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = piped.spawn().unwrap();
        let mut output = process.stdout.take().unwrap();
        let (send, bytes) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                if send.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            process,
            bytes,
            received: Vec::new(),
            screen: vt100::Parser::new(rows.try_into().unwrap(), 80.try_into().unwrap(), 0),
        }
    }

    /// Waits until the screen contains all texts, and returns it.
    #[track_caller]
    fn wait_for(&mut self, texts: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let shown = self.screen.screen().contents();
            if texts.iter().all(|text| shown.contains(text)) {
                return shown;
            }
            let Ok(bytes) = self.bytes.recv_timeout(TIMEOUT.saturating_sub(begun.elapsed())) else {
                panic!("{texts:?} are not on the screen:\n{shown}");
            };
            self.screen.process(&bytes);
            self.received.extend(bytes);
        }
    }

    fn press(&mut self, keys: &str) {
        self.process
            .stdin
            .as_mut()
            .unwrap()
            .write_all(keys.as_bytes())
            .unwrap();
    }

    /// Ends the view, and returns all bytes that it wrote.
    fn end(mut self) -> Vec<u8> {
        self.press("q");
        self.received.extend(self.bytes.iter().flatten());
        assert!(self.process.wait().unwrap().success());
        self.received
    }
}

/// Starts a proxy with a partition, a queued request of a running command, and a cordon.
fn fixture() -> (ProxyFixture, Running) {
    let fixture = ProxyFixture::start();
    fixture.ok(&["partition", "create", "train", "--size", "16"]);
    fixture.ok(&["cordon", "a8", "--reason", "Lüfter \u{1b}[31mdefekt"]);
    let queued = fixture.start_command(&["partition", "create", "wide", "--size", "16"]);
    while fixture.json(&["waiting"]) == serde_json::json!([]) {}
    (fixture, queued)
}

#[test]
fn the_view_in_a_pipe_is_one_picture_of_plain_text() {
    let (fixture, queued) = fixture();
    let picture = fixture.ok(&["top"]);
    for expected in [
        "32 IPUs: 12 free, 16 active, 4 cordoned",
        "a1 AAAA",
        "a8 CCCC",
        "train active of ",
        " on a1 a2 a3 a4",
    ] {
        assert!(picture.contains(expected), "{expected}:\n{picture}");
    }
    assert!(picture.chars().all(|c| c == '\n' || !c.is_control()), "{picture}");
    assert!(
        picture.lines().all(|line| line.chars().count() <= 100),
        "{picture}"
    );
    let map: serde_json::Value = serde_json::from_str(&fixture.ok(&["top", "-o", "json"])).unwrap();
    assert_eq!(map["controllers"][0]["health"], "available");
    queued.signal("-INT");
    queued.end();
}

#[test]
fn the_view_fits_80_by_24_with_and_without_colour_and_utf_8() {
    let test = "the_view_fits_80_by_24_with_and_without_colour_and_utf_8";
    if !has_script(test) {
        return;
    }
    let (fixture, queued) = fixture();
    for (environment, reason, has_colour) in [
        ("LANG=C.UTF-8", "Lüfter ?[31mdefekt", true),
        ("LANG=C NO_COLOR=1", "L?fter ?[31mdefekt", false),
    ] {
        let mut terminal = Terminal::start(&fixture, environment, 24);
        terminal.wait_for(&[
            "CONTROLLER",
            "a1 AAAA",
            "a8 CCCC",
            "QUEUE",
            "CORDONS",
            reason,
            "q: quit",
            "(live)",
        ]);
        let written = terminal.end();
        let text = String::from_utf8_lossy(&written);
        assert_eq!(
            text.contains("\u{1b}[38;5;"),
            has_colour,
            "{environment}: {text:?}"
        );
        assert!(has_colour || written.is_ascii(), "{environment}");
        assert!(
            text.contains("\u{1b}[?1049l"),
            "the terminal is restored: {text:?}"
        );
    }
    queued.signal("-INT");
    queued.end();
}

#[test]
fn the_view_is_live_and_says_since_when_it_is_old() {
    let test = "the_view_is_live_and_says_since_when_it_is_old";
    if !has_script(test) {
        return;
    }
    let mut fixture = ProxyFixture::start();
    let mut terminal = Terminal::start(&fixture, "LANG=C", 12);
    terminal.wait_for(&["a1 FFFF", "No request waits."]);
    fixture.ok(&["partition", "create", "train", "--size", "4"]);
    terminal.wait_for(&["a1 AAAA", "lines 1 to 8"]);
    terminal.press("\t");
    terminal.wait_for(&["train active", "lines 3 to 10"]);
    fixture.stop();
    terminal.wait_for(&["OLD since", "no answer"]);
    terminal.end();
}
