(function () {
  'use strict';
  var frames = Array.prototype.map.call(document.querySelectorAll('svg.f'), function (element) {
    var number = function (name) { return parseFloat(element.getAttribute(name)); };
    return { element: element, left: number('x'), top: number('y'), width: number('width'), callees: [], id: '' };
  });
  if (!frames.length) { return; }
  var root = frames[0], graph = root.element.parentNode;
  var shown = document.getElementById('shown'), under = document.getElementById('under');
  var search = document.getElementById('search');
  var zoomed = root, stop = root;
  var nearly = 1e-3;

  function name(frame) { return frame.element.querySelector('text').textContent; }
  function says(frame) { return frame.element.querySelector('title').textContent; }
  function tell(line, text) { if (line) { line.textContent = text; } }

  // A frame comes after its caller and before its callees. Its id is made of the names from the first frame on: so an
  // address leads to the same functions after the picture has changed.
  function mix(text, sum) {
    for (var at = 0; at < text.length; at += 1) { sum = (sum * 33 ^ text.charCodeAt(at)) >>> 0; }
    return sum;
  }
  var path = [];
  frames.forEach(function (frame) {
    while (path.length && path[path.length - 1].top >= frame.top) { path.pop(); }
    frame.caller = path[path.length - 1];
    if (frame.caller) {
      frame.sum = mix('/' + name(frame), frame.caller.sum);
      frame.id = '#f' + frame.sum.toString(36);
      frame.caller.callees.push(frame);
    } else {
      frame.sum = 5381;
    }
    frame.element.frame = frame;
    path.push(frame);
  });

  function zoom(to) {
    frames.forEach(function (frame) {
      var above = frame.top < to.top;
      var within = frame.left >= to.left - nearly && frame.left + frame.width <= to.left + to.width + nearly;
      var around = frame.left <= to.left + nearly && frame.left + frame.width >= to.left + to.width - nearly;
      var left = 0, width = 100;
      if (!above) {
        left = (frame.left - to.left) / to.width * 100;
        width = frame.width / to.width * 100;
      }
      if (above ? around : within) {
        frame.element.setAttribute('x', left + '%');
        frame.element.setAttribute('width', width + '%');
        frame.element.removeAttribute('display');
      } else {
        frame.element.setAttribute('display', 'none');
      }
      frame.element.classList.toggle('past', above);
    });
    zoomed = to;
    var active = document.activeElement;
    stopAt(to);
    if (active && active.frame && active.frame !== to) { to.element.focus(); }
    tell(shown, says(to));
  }

  // Zooms, and makes a step of the history, to which Back returns.
  function go(to) {
    zoom(to);
    if (location.hash === to.id) { return; }
    try {
      history.pushState(null, '', to.id || location.href.split('#')[0]);
    } catch (refused) {
      location.hash = to.id;
    }
  }

  // Zooms as the address says. An address of a frame that is not there leads to the whole picture.
  function follow() {
    var to = frames.filter(function (frame) { return frame.id === location.hash; })[0] || root;
    if (to !== zoomed) { zoom(to); }
  }

  // One frame is a stop of the Tab key, and the arrow keys lead from it to the others.
  function stopAt(frame) {
    if (stop !== frame) {
      stop.element.removeAttribute('tabindex');
      stop.element.removeAttribute('role');
    }
    frame.element.setAttribute('tabindex', '0');
    frame.element.setAttribute('role', 'button');
    stop = frame;
  }
  function isVisible(frame) { return !!frame && frame.element.getAttribute('display') !== 'none'; }
  function beside(frame, step) {
    var all = frame.caller ? frame.caller.callees : [frame];
    return all[all.indexOf(frame) + step];
  }
  function next(frame, key) {
    switch (key) {
    case 'ArrowDown': return frame.callees[0];
    case 'ArrowUp': return frame.caller;
    case 'ArrowLeft': return beside(frame, -1);
    case 'ArrowRight': return beside(frame, 1);
    case 'Home': return root;
    default: return undefined;
    }
  }
  function at(event) {
    var element = event.target.closest && event.target.closest('svg.f');
    return element && element.frame;
  }

  function showAll() {
    if (search) {
      search.value = '';
      find('');
    }
    go(root);
  }

  graph.addEventListener('click', function (event) {
    var frame = at(event);
    if (frame) { go(frame); }
  });
  graph.addEventListener('mouseover', function (event) {
    var frame = at(event);
    tell(under, frame ? says(frame) : '');
  });
  graph.addEventListener('mouseleave', function () { tell(under, ''); });
  graph.addEventListener('focusin', function (event) {
    var frame = at(event);
    if (frame) { tell(under, says(frame)); }
  });
  graph.addEventListener('focusout', function () { tell(under, ''); });
  document.addEventListener('keydown', function (event) {
    if (event.altKey || event.ctrlKey || event.metaKey) { return; }
    if (event.key === 'Escape') { showAll(); return; }
    var frame = at(event);
    if (!frame) { return; }
    var to = next(frame, event.key);
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      go(frame);
    } else if (isVisible(to)) {
      event.preventDefault();
      stopAt(to);
      to.element.focus();
      tell(under, says(to));
    }
  });
  window.addEventListener('popstate', follow);
  window.addEventListener('hashchange', follow);
  if (graph.getAttribute('role') === 'img') { graph.setAttribute('role', 'group'); }
  stopAt(root);

  // Time that is counted once where a frame that is found calls another.
  function share(hits) {
    var sum = 0, end = 0;
    hits.sort(function (a, b) { return a.left - b.left || b.width - a.width; }).forEach(function (hit) {
      var right = hit.left + hit.width;
      if (right > end) { sum += right - Math.max(end, hit.left); end = right; }
    });
    return sum;
  }
  function find(text) {
    var wanted = text.toLowerCase();
    var hits = frames.filter(function (frame) {
      var hit = wanted !== '' && name(frame).toLowerCase().indexOf(wanted) >= 0;
      frame.element.classList.toggle('hit', hit);
      frame.element.classList.toggle('miss', wanted !== '' && !hit);
      return hit;
    });
    var found = hits.length + (hits.length === 1 ? ' frame, ' : ' frames, ') + share(hits).toFixed(1) + ' % of the time';
    tell(shown, wanted === '' ? '' : found);
  }

  var tools = document.getElementById('tools');
  if (tools) {
    tools.hidden = false;
    document.getElementById('reset').addEventListener('click', showAll);
    search.addEventListener('input', function () { find(search.value); });
  }
  follow();
}());
