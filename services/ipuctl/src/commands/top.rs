//! `ipuctl top`: map, queue and controllers.

use std::io::{IsTerminal as _, stdout};

use ipu_proxy_client::ProxyClient;
use ipu_proxy_client::cli::top::{self, TerminalOptions};

use crate::cli::Format;
use crate::exit_code::{Code, Failure};
use crate::output::{Output, Stream};
use crate::table;

/// Shows the view on a terminal until the user ends it, else prints one picture, or the map as a document.
pub(crate) async fn run(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let mut options = TerminalOptions::from_variables(|name| std::env::var(name).ok());
    options.colour = output.has_colour(Stream::Out);
    if !format.is_text() {
        let map = proxy.map().await?;
        output.result(&table::render(format, &map, String::new)?);
    } else if stdout().is_terminal() {
        top::watch(proxy, options).await?;
    } else {
        output.result(&top::picture(proxy, options.utf8).await?);
    }
    Ok(Code::Done)
}
