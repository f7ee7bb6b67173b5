use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn key(selector: &str) -> DrawingKey {
    DrawingKey { what: Drawing::Page(Side::OffCpu), selector: selector.parse().unwrap() }
}

fn drawn(length: usize) -> Drawn {
    Drawn { body: vec![b'x'; length], nonce: None }
}

/// Starts a drawing that lasts until the returned sender is dropped.
async fn busy(drawer: &Drawer, windows: &Windows) -> (mpsc::Sender<()>, tokio::task::JoinHandle<()>) {
    let (end, ends) = mpsc::channel::<()>();
    let (begin, begun) = oneshot::channel();
    let (drawer, windows) = (drawer.clone(), windows.clone());
    let draw = move |_: &[Arc<Profile>]| {
        begin.send(()).ok();
        ends.recv().ok();
        drawn(1)
    };
    let task = tokio::spawn(async move {
        drawer.draw_windows(&windows, key("/busy"), draw).await.unwrap();
    });
    begun.await.unwrap();
    (end, task)
}

#[tokio::test]
async fn one_is_drawn_few_wait_and_the_rest_is_refused_at_once() {
    let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
    let (end, first) = busy(&drawer, &windows).await;
    let (at_once, most_at_once) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut waiting = Vec::new();
    for number in 0..64 {
        let (drawer, windows) = (drawer.clone(), windows.clone());
        let (at_once, most) = (Arc::clone(&at_once), Arc::clone(&most_at_once));
        waiting.push(tokio::spawn(async move {
            let draw = move |_: &[Arc<Profile>]| {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(5));
                at_once.fetch_sub(1, Ordering::SeqCst);
                drawn(number)
            };
            drawer.draw_windows(&windows, key(&format!("/{number}")), draw).await.map(|answer| answer.body().len())
        }));
    }
    // The requests without a place are refused while the first drawing is still in progress.
    let refused = async {
        loop {
            tokio::task::yield_now().await;
            if waiting.iter().filter(|task| task.is_finished()).count() == 64 - (PLACES - 1) {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
    drop(end);
    first.await.unwrap();
    let mut answered = 0;
    for (number, task) in waiting.into_iter().enumerate() {
        match task.await.unwrap() {
            Ok(length) => {
                assert_eq!(length, number);
                answered += 1;
            }
            Err(error) => assert!(matches!(error, RecordError::Drawing), "{error}"),
        }
    }
    assert_eq!((answered, most_at_once.load(Ordering::SeqCst)), (PLACES - 1, 1));
}

#[tokio::test]
async fn who_goes_away_frees_the_place() {
    let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
    let (end, first) = busy(&drawer, &windows).await;
    for round in 0..10 {
        let mut waiting = Vec::new();
        for number in 1..PLACES {
            let (drawer, windows) = (drawer.clone(), windows.clone());
            waiting.push(tokio::spawn(async move {
                drawer.draw_windows(&windows, key(&format!("/{number}")), |_| drawn(1)).await.map(drop)
            }));
        }
        while drawer.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = drawer.draw_windows(&windows, key("/x"), |_| drawn(1)).await;
        assert!(matches!(refused, Err(RecordError::Drawing)), "{round}");
        for task in waiting {
            task.abort();
            task.await.unwrap_err();
        }
        assert_eq!(drawer.places.available_permits(), PLACES - 1);
    }
    // The client of the drawing in progress goes away, too. Its turn lasts until the drawing ends, but its place is
    // free.
    first.abort();
    first.await.unwrap_err();
    assert_eq!((drawer.places.available_permits(), drawer.turn.available_permits()), (PLACES, 0));
    drop(end);
    assert_eq!(drawer.draw_windows(&windows, key("/x"), |_| drawn(7)).await.unwrap().body().len(), 7);
}

#[tokio::test]
async fn the_last_drawing_is_handed_out_again_while_the_windows_are_the_same() {
    let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
    let times = Arc::new(AtomicUsize::new(0));
    let draw = async |of: &str| {
        let times = Arc::clone(&times);
        let draw = move |_: &[Arc<Profile>]| drawn(times.fetch_add(1, Ordering::SeqCst) + 1);
        drawer.draw_windows(&windows, key(of), draw).await.unwrap().body().len()
    };
    assert_eq!([draw("/a").await, draw("/a").await, draw("/b").await, draw("/b").await], [1, 1, 2, 2]);
    assert_eq!(draw("/a").await, 3, "only the last one is kept");
    windows.publish(&Arc::default());
    assert_eq!([draw("/a").await, draw("/a").await], [4, 4]);
    drawer.given_up.set(1);
    windows.publish(&Arc::default());
    assert_eq!([draw("/a").await, draw("/a").await], [5, 6], "nothing is kept while caches are given up");
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded() {
    let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
    let draw = async |of: &str| drawer.draw_windows(&windows, key(of), |_| drawn(MOST_UNREAD / 2 + 1)).await;
    let held = [draw("/a").await.unwrap().body(), draw("/b").await.unwrap().body()];
    assert!(matches!(draw("/c").await, Err(RecordError::Unread)));
    drop(held);
    draw("/c").await.unwrap();
}

#[tokio::test]
async fn without_room_nothing_is_begun() {
    let given_up = GivenUp::default();
    let (drawer, windows) = (Drawer::new(given_up.clone()), Windows::new(given_up.clone()));
    given_up.set_most_resident(resident() + LEAST_BYTES / 2);
    let begun = Arc::new(AtomicUsize::new(0));
    let draw = async || {
        let begun = Arc::clone(&begun);
        let draw = move |_: &[Arc<Profile>]| drawn(begun.fetch_add(1, Ordering::SeqCst));
        drawer.draw_windows(&windows, key("/a"), draw).await
    };
    let error = draw().await.unwrap_err().to_string();
    assert!(error.contains("takes up to 24 MiB") && error.contains("`overhead.maxMemory`"), "{error}");
    assert_eq!(begun.load(Ordering::SeqCst), 0);
    given_up.set_most_resident(u64::MAX);
    draw().await.unwrap();
}

#[tokio::test]
async fn a_drawing_that_panics_is_one_answer() {
    let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
    let broken = drawer.draw_windows(&windows, key("/a"), |_| panic!("of this test")).await;
    assert!(matches!(broken, Err(RecordError::Broken)));
    assert_eq!(drawer.draw_windows(&windows, key("/a"), |_| drawn(7)).await.unwrap().body().len(), 7);
}

#[test]
fn the_start_page_takes_memory_for_its_rows_whatever_the_windows_have() {
    let windows = Size { samples: 50_000, bytes: 24 << 20 };
    let needs = |rows, most| Drawing::Overview { reading: 1, view: String::new(), rows, most }.needs(windows);
    assert_eq!((needs(30, 300), needs(2048, 1024)), (30 * (10 << 10), 12 << 20));
    assert!(Drawing::Page(Side::OffCpu).needs(windows) > LEAST_BYTES);
}
