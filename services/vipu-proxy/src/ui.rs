//! The page at `/ui/`: static files, which contain no data of the installation.

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use warp::reply::{Reply as _, Response};

/// Scripts, styles and requests of this origin only, and no frame of another page.
const CONTENT_POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Files by name, with their types.
const FILES: [(&str, &str, &str); 6] = [
    ("", HTML, include_str!("../ui/index.html")),
    ("style.css", STYLE, include_str!("../ui/style.css")),
    ("main.js", SCRIPT, include_str!("../ui/main.js")),
    ("proxy.js", SCRIPT, include_str!("../ui/proxy.js")),
    ("map.js", SCRIPT, include_str!("../ui/map.js")),
    ("lists.js", SCRIPT, include_str!("../ui/lists.js")),
];

/// Handles `GET /ui`: redirects to the directory, by a relative address, so that a prefix of the path stays.
pub(crate) fn redirect() -> Response {
    let mut response = StatusCode::PERMANENT_REDIRECT.into_response();
    response
        .headers_mut()
        .insert(LOCATION, HeaderValue::from_static("ui/"));
    response
}

/// Handles `GET /ui/{file}`; none if there is no such file.
pub(crate) fn file(name: &str) -> Option<Response> {
    let (_, kind, text) = FILES.iter().find(|(file, ..)| *file == name)?;
    let mut response = text.into_response();
    for (name, value) in [
        (CONTENT_TYPE, *kind),
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // A new version of the proxy has a new page.
        (CACHE_CONTROL, "no-cache"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_less_than_60_kb() {
        let size: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(size < 60_000, "{size} bytes");
    }

    #[test]
    fn the_page_neither_loads_from_elsewhere_nor_writes_html() {
        for (name, _, text) in FILES {
            for forbidden in [
                "http://",
                "https://",
                "=\"/",
                "'/",
                "innerHTML",
                "insertAdjacentHTML",
                "eval(",
            ] {
                assert!(!text.contains(forbidden), "{name}: {forbidden}");
            }
        }
    }
}
