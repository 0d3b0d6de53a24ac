//! Live updates: once a second the node is looked at, once for all who watch; they get it as server-sent events.
//!
//! A reader who is slow misses events, and gets the newest when it reads again; one that takes nothing at all for as
//! long as a connection may be quiet loses it. Nothing is queued for anybody.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use crate::runtime::glance::{Glance, Places};
use crate::runtime::node::Node;

use super::journal::Journal;
use super::overview::overview;
use super::text::Text;
use super::window::Window;

/// Those who may watch at a time.
pub(super) const SEATS: usize = 32;
/// How often there is news.
const TICK: Duration = Duration::from_secs(1);
/// After this, a browser whose stream has ended asks again, milliseconds.
const RETRY: u64 = 2000;

/// The watch over a node.
#[derive(Debug)]
pub struct Feed {
    node: Weakly,
    seen: Mutex<Seen>,
    latest: watch::Sender<Arc<str>>,
    seats: Arc<Semaphore>,
    taken: AtomicU64,
    refused: AtomicU64,
}

/// The node, without its name in debug output.
struct Weakly(Arc<Node>);

impl std::fmt::Debug for Weakly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Node")
    }
}

/// What has been seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// How calls fared.
    pub(super) window: Window,
    /// What happened.
    pub(super) journal: Journal,
    /// The numbers of the last look.
    pub(super) glance: Glance,
    places: Places,
}

impl Feed {
    /// Over a node; nothing is looked at before [`Feed::run`].
    pub fn new(node: Arc<Node>) -> Arc<Self> {
        Arc::new(Self {
            node: Weakly(node),
            seen: Mutex::default(),
            latest: watch::Sender::new(Arc::from("")),
            seats: Arc::new(Semaphore::new(SEATS)),
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Looks once a second, until it is dropped.
    pub async fn run(self: Arc<Self>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let feed = Arc::clone(&self);
            // Waits for locks of shards, as every question does.
            if tokio::task::spawn_blocking(move || feed.look()).await.is_err() {
                tracing::error!("the watch over the node has failed once");
            }
        }
    }

    /// Takes in what is new, and tells those who watch.
    fn look(&self) {
        let (node, second) = (&self.node.0, self.second());
        let (now, glance) = (Instant::now(), node.glance());
        let news = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let Seen { window, places, journal, .. } = &mut *seen;
            node.fresh_records(places, &mut |record| window.record(second, record));
            window.look(now, glance.calls, &glance.stats);
            journal.look(now, node.fallen(), node.overload(now).shedding, node.is_draining());
            seen.glance = glance;
            (self.latest.receiver_count() > 0).then(|| overview(node, &seen, second, false))
        };
        if let Some(news) = news {
            self.latest.send_replace(Arc::from(news.to_string()));
        }
    }

    fn second(&self) -> u64 {
        self.node.0.started().elapsed().as_secs()
    }

    /// The overview with its history.
    fn whole(&self) -> Value {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        overview(&self.node.0, &seen, self.second(), true)
    }

    /// Its metrics.
    pub fn metrics(&self) -> String {
        let mut text = Text::default();
        text.family("sbe_event_subscribers", "gauge", "Those who follow /api/v1/events.")
            .sample(&[], SEATS - self.seats.available_permits());
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        text.family("sbe_event_subscriptions_total", "counter", "Requests for /api/v1/events, by outcome.")
            .sample(&[("outcome", "ok")], read(&self.taken))
            .sample(&[("outcome", "refused")], read(&self.refused));
        text.finish()
    }
}

/// `/api/v1/overview` and `/api/v1/events`
pub fn routes<S: Clone + Send + Sync + 'static>(feed: Arc<Feed>) -> Router<S> {
    Router::new().route("/api/v1/overview", get(whole)).route("/api/v1/events", get(events)).with_state(feed)
}

async fn whole(State(feed): State<Arc<Feed>>) -> Response {
    match tokio::task::spawn_blocking(move || feed.whole()).await {
        Ok(value) => Json(value).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn events(State(feed): State<Arc<Feed>>) -> Response {
    let Ok(seat) = Arc::clone(&feed.seats).try_acquire_owned() else {
        feed.refused.fetch_add(1, Ordering::Relaxed);
        let text = format!("{SEATS} are watching already: ask /api/v1/overview now and then instead");
        let later = [(header::RETRY_AFTER, "10")];
        return (StatusCode::SERVICE_UNAVAILABLE, later, Json(json!({ "error": text }))).into_response();
    };
    feed.taken.fetch_add(1, Ordering::Relaxed);
    // The newest counts as seen: the first event is the next one.
    let latest = feed.latest.subscribe();
    let first = Event::default().retry(Duration::from_millis(RETRY)).comment("once a second");
    let stream =
        futures_util::stream::unfold((latest, seat, Some(first)), |(mut latest, seat, first)| async {
            if let Some(event) = first {
                return Some((Ok::<_, Infallible>(event), (latest, seat, None)));
            }
            latest.changed().await.ok()?;
            let news = Arc::clone(&latest.borrow_and_update());
            let event = Event::default().event("overview").data(&*news);
            Some((Ok(event), (latest, seat, None)))
        });
    Sse::new(stream).into_response()
}
