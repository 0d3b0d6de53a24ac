//! The command line.
//!
//! Exit status: 0 done; 1 the answer is no (no candidate, no such call, the action failed); 2 the command
//! line or the configuration is wrong; 3 the running node cannot be reached.

mod ask;
mod capture;
mod check;
mod explain;
mod pages;
mod resolve;
mod run;
mod service;
mod show;
#[cfg(test)]
mod tests;
mod zone;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::admin::whatif::WhatIf;
use crate::demo;

/// The answer is no.
const NO: u8 = 1;
/// The command line or the configuration is wrong.
const WRONG: u8 = 2;
/// The running node cannot be reached.
const UNREACHABLE: u8 = 3;

const EXIT_STATUS: &str = "Exit status: 0 done; 1 the answer is no (no candidate, no such call, an action that failed); \
2 the command line or the configuration is wrong; 3 the running node cannot be reached.";

/// A SIP peering border element: a stateful SIP proxy between a provider's core and its peers.
#[derive(Debug, Parser)]
#[command(name = "sbe", version, about, after_help = EXIT_STATUS, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the border element in the foreground
    ///
    /// Prints one line per listener, then "ready", once it accepts traffic. SIGTERM and SIGINT: refuse new
    /// requests, wait for those under way (at most runtime.drain_timeout), exit 0; a second signal exits at
    /// once. SIGHUP: read the configuration again, and keep the old one if it has errors. SIGUSR2: let a new process of
    /// the program take over, see sbe upgrade. Sockets that the service manager has opened (LISTEN_FDS) are taken for
    /// the listeners of their addresses.
    Run(ConfigFile),
    /// Check a configuration without running it
    ///
    /// Prints every error as FILE:LINE:COLUMN: what is wrong, and what would be right. Warnings do not
    /// change the exit status.
    Check(ConfigFile),
    /// Show how a SIP, SIPS or tel URI would be located
    ///
    /// Shows each DNS step with its TTL and outcome, the candidates in order, and what was left out and why.
    /// "first" is the share of calls that would try a candidate first, "order" the place in which a call goes on
    /// that draws the largest share each time. Asks the DNS itself, so that it needs no running node; health is not known here (a running node
    /// tells: /api/v1/resolve?uri=URI). With --zone a file answers in the place of the DNS, and nothing is sent.
    Resolve(Resolve),
    /// Check the zone of a domain: our own, or a peer's
    #[command(subcommand)]
    Zone(ZoneCommand),
    /// Show it at work: calls, failing servers, no call lost
    ///
    /// A world of its own on loopback: a name server, a peer with three SIP instances, this border element,
    /// and a core that calls. Now and then an instance is killed, answers 503 or goes silent. With --calls
    /// it stops, shows what both ends have counted, and exits 0 if every call succeeded, else 1.
    Demo(demo::Options),
    /// Show the state of a running node
    Status(Admin),
    /// Show the peers of a running node, their instances and how these stand
    Peers(Admin),
    /// Show why a recent call went where it went
    ///
    /// Who sent it, by which rule it was routed, what was looked up, the candidates in order, and each
    /// attempt with its outcome and times. Call-IDs are matched whole.
    Explain(Explain),
    /// List recent calls of a running node
    ///
    /// Newest first. Everything left out holds for all.
    Calls(Calls),
    /// Record messages of a running node as pcapng, for tshark, Wireshark and sngrep
    ///
    /// Follows the capture until its time is over, or until you end it; for example: sbe capture --user 4420794 | tshark
    /// -r - . Once one message of a call shows what is asked for, all messages of that call are taken. What TLS
    /// carries is shown in the clear. With --background the node keeps the newest messages for later: --list shows
    /// captures, --fetch gets one, --stop ends one. Needs the operator's token where the node wants tokens.
    Capture(Capture),
    /// Refuse new requests on a running node, and go on with those under way
    Drain(Admin),
    /// Accept new requests again
    Undrain(Admin),
    /// Forget what the DNS said
    Flush(Flush),
    /// Make a running node read its configuration again
    Reload(Admin),
    /// Let a new process of a running node take over, without losing a call
    ///
    /// The node starts the program again that is now installed where it was started from, with the same arguments,
    /// and hands it the sockets. Calls under way end in the old process, new ones begin in the new one. If that does
    /// not get ready, nothing changes and the reason is printed. As SIGUSR2 to the node.
    Upgrade(Admin),
    /// Print completions for a shell
    ///
    /// For example: sbe completions bash > /usr/share/bash-completion/completions/sbe
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    ///
    /// One for sbe and one for each command, as sbe.1, sbe-run.1 and so on.
    Man {
        /// Directory to write them to
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// `--config`
#[derive(Debug, Args)]
pub struct ConfigFile {
    /// Configuration file [default: config/sbe.toml, else /etc/sbe/sbe.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `resolve`
#[derive(Debug, Args)]
pub struct Resolve {
    /// The URI, for example sip:example.com
    pub uri: String,
    /// Configuration file [default: config/sbe.toml, else /etc/sbe/sbe.toml, else listeners of all
    /// transports on both sides are assumed]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name server to ask instead of those of the configuration or the system
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = name_server)]
    pub server: Option<SocketAddr>,
    /// Zone file that answers in the place of all name servers; one or several zones, with $ORIGIN and $TTL
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub zone: Option<PathBuf>,
    /// Suppose these to be down, and show where calls would go: addresses, ADDR:PORT, or instances like
    /// udp:192.0.2.7:5060
    #[arg(long, value_name = "down=ADDR[,ADDR...]")]
    pub what_if: Option<WhatIf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `zone`
#[derive(Debug, Subcommand)]
pub enum ZoneCommand {
    /// Check a domain's NAPTR, SRV and address records against best current practice
    ///
    /// Each finding says what is wrong, why (with the section of the RFC), and what to do; then come the records as
    /// they could be, with the servers that there are. Exit status 0 without errors, 1 with errors. Without --server
    /// the name servers of the system are asked; where these are caches, TTLs can be judged in part only.
    Check(ZoneCheck),
}

/// `zone check`
#[derive(Debug, Args)]
pub struct ZoneCheck {
    /// The domain, for example example.com
    pub domain: String,
    /// Name server to ask, best one of the zone itself; given several times, all are asked and their answers compared
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = name_server)]
    pub server: Vec<SocketAddr>,
    /// Zone file to check, before it is published; relative names are below the domain where no $ORIGIN says otherwise
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub zone: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Where the running node is, and how to print.
#[derive(Debug, Args)]
pub struct Admin {
    /// Admin interface of the node
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9060")]
    pub admin: String,
    /// File with the token to show, where the node wants one [default: $SBE_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print JSON as the node gives it
    #[arg(long)]
    pub json: bool,
}

/// `explain`
#[derive(Debug, Args)]
pub struct Explain {
    /// The Call-ID
    #[arg(allow_hyphen_values = true)]
    pub call_id: String,
    /// Where the node is.
    #[command(flatten)]
    pub admin: Admin,
}

/// `calls`
#[derive(Debug, Args)]
pub struct Calls {
    /// A part of the Request-URI or of the From header field: a number, a user, a domain
    #[arg(long, value_name = "TEXT")]
    pub user: Option<String>,
    /// Whom it came from or was for: a peer's name, or core
    #[arg(long, value_name = "NAME")]
    pub peer: Option<String>,
    /// ok, failed, refused, cancelled, failover, a status (486) or a class (5xx)
    #[arg(long, value_name = "WORD")]
    pub outcome: Option<String>,
    /// INVITE, OPTIONS, ...
    #[arg(long, value_name = "METHOD")]
    pub method: Option<String>,
    /// Not before: seconds since 1970, or how long ago (15m, 2h)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Not after; likewise
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// At most so many [default: 100]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Where the node is.
    #[command(flatten)]
    pub admin: Admin,
}

/// `capture`
#[derive(Debug, Args)]
pub struct Capture {
    /// Calls with messages from or to this peer
    #[arg(long, value_name = "NAME")]
    pub peer: Option<String>,
    /// Calls with this in the Request-URI, From, To or P-Asserted-Identity: a number, a user, a domain, or a part
    #[arg(long, value_name = "TEXT")]
    pub user: Option<String>,
    /// The call of this Call-ID
    #[arg(long, value_name = "CALL-ID", allow_hyphen_values = true)]
    pub call_id: Option<String>,
    /// End after this time: seconds, or 10m, 2h; at most 24h [default: 300]
    #[arg(long, value_name = "TIME")]
    pub seconds: Option<String>,
    /// Memory that the node may use for it, from which a slow reader reads: 64KiB to 64MiB [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// End after so many messages
    #[arg(long, value_name = "N")]
    pub packets: Option<u64>,
    /// File to write, - for the standard output [default: -]
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Let the node keep the newest messages, and return at once
    #[arg(long, conflicts_with = "out")]
    pub background: bool,
    /// Write what this capture has kept
    #[arg(long, value_name = "ID", conflicts_with_all = ["background", "list", "stop"])]
    pub fetch: Option<u64>,
    /// List captures
    #[arg(long, conflicts_with_all = ["background", "stop"])]
    pub list: bool,
    /// End this capture and forget it
    #[arg(long, value_name = "ID", conflicts_with = "background")]
    pub stop: Option<u64>,
    /// Where the node is.
    #[command(flatten)]
    pub admin: Admin,
}

/// `flush`
#[derive(Debug, Args)]
pub struct Flush {
    /// This name and all below it [default: everything]
    pub name: Option<String>,
    /// Where the node is.
    #[command(flatten)]
    pub admin: Admin,
}

/// An address with or without a port.
fn name_server(text: &str) -> Result<SocketAddr, String> {
    let addr = |t: &str| t.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 53));
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    text.parse()
        .ok()
        .or_else(|| addr(bare))
        .ok_or_else(|| "write an address and a port, for example 127.0.0.1:53".to_owned())
}

/// Carries out a command.
pub fn run(cli: Cli) -> ExitCode {
    // Before anything of size is allocated.
    crate::runtime::no_huge_pages();
    let status = match cli.command {
        Command::Run(args) => run::run(args.config.as_deref()),
        Command::Check(args) => check::check(args.config.as_deref()),
        Command::Resolve(args) => resolve::resolve(&args),
        Command::Zone(ZoneCommand::Check(args)) => zone::check(&args),
        Command::Demo(options) => u8::from(!demo::run(&options)) * NO,
        Command::Status(admin) => ask::status(&admin),
        Command::Peers(admin) => ask::peers(&admin),
        Command::Explain(args) => ask::explain(&args),
        Command::Calls(args) => ask::calls(&args),
        Command::Capture(args) => capture::capture(&args),
        Command::Drain(admin) => ask::drain(&admin, true),
        Command::Undrain(admin) => ask::drain(&admin, false),
        Command::Flush(args) => ask::flush(&args),
        Command::Reload(admin) => ask::reload(&admin),
        Command::Upgrade(admin) => ask::upgrade(&admin),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { dir } => pages::man(&dir),
    };
    ExitCode::from(status)
}

/// Prints to the standard output. That nobody reads it (a closed pipe) is no error.
fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
