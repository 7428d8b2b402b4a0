//! Requests that a web page can make in a browser of this host: refused unless the proxy itself served the page.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::uri::Authority;
use http::{HeaderMap, Request, StatusCode, header};

use crate::problem::Problem;

/// Refuses a request of a page of another site, and on loopback one for a name that another party resolves.
pub(crate) fn check<B>(request: &Request<B>, loopback: bool) -> Result<(), Problem> {
    let host = authority(request);
    if loopback && host.as_ref().is_some_and(|host| !is_local(host.host())) {
        return Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "ForeignHost",
            "the header Host must be an IP address or localhost: the proxy listens on a loopback address",
        )
        .with_fix("send the request to http://localhost, or to the IP address"));
    }
    let headers = request.headers();
    let site = text(headers, "sec-fetch-site");
    let foreign = site.is_some_and(|site| !matches!(site, "same-origin" | "none"));
    // A header that is not readable is of another origin too.
    let origin = headers.contains_key(header::ORIGIN);
    if foreign || (origin && !is_own(text(headers, header::ORIGIN.as_str()), host.as_ref())) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "CrossSite",
            "a page of another site sent the request: its Origin is not the Host, or Sec-Fetch-Site is not same-origin",
        )
        .with_fix("send the request with a client that is no browser, such as ipuctl or curl"));
    }
    Ok(())
}

/// Refuses a write that a page can send without the consent of the server: one that is not `application/json`. Without a
/// body and without `JobOrigin` it is none of a page.
pub(crate) fn check_write(headers: &HeaderMap, empty: bool) -> Result<(), Problem> {
    let kind = text(headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") || (empty && !headers.contains_key(header::ORIGIN)) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "NotJsonType",
        format!("Content-Type = {kind:?}: a write must be application/json"),
    )
    .with_fix("send the header `Content-Type: application/json`"))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The host that the request is for: of its URI (HTTP/2), or of its header.
fn authority<B>(request: &Request<B>) -> Option<Authority> {
    let of_uri = request.uri().authority().cloned();
    of_uri.or_else(|| {
        let host = request.headers().get(header::HOST)?;
        // A host that is not readable is none of ours.
        Some(
            Authority::try_from(host.as_bytes())
                .unwrap_or_else(|_| Authority::from_static("unreadable.invalid")),
        )
    })
}

fn is_local(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok()
        || bare.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
}

/// Whether an origin is the host itself. A port that the scheme implies may be left out.
fn is_own(origin: Option<&str>, host: Option<&Authority>) -> bool {
    let (Some((scheme, origin)), Some(host)) = (origin.and_then(|text| text.split_once("://")), host) else {
        return false;
    };
    let implied = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let Ok(origin) = origin.parse::<Authority>() else {
        return false;
    };
    origin.host().eq_ignore_ascii_case(host.host())
        && origin.port_u16().unwrap_or(implied) == host.port_u16().unwrap_or(implied)
}
