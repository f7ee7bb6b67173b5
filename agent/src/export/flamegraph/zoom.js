(function () {
  'use strict';
  var shown = document.getElementById('shown');
  var frames = Array.prototype.map.call(document.querySelectorAll('svg.f'), function (element) {
    var number = function (name) { return parseFloat(element.getAttribute(name)); };
    return { element: element, left: number('x'), top: number('y'), width: number('width') };
  });
  var nearly = 1e-3;

  function name(frame) { return frame.element.querySelector('text').textContent; }

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
    if (shown) { shown.textContent = to.element.querySelector('title').textContent; }
  }

  frames.forEach(function (frame) {
    frame.element.addEventListener('click', function () { zoom(frame); });
  });
  if (!frames.length) { return; }

  var tools = document.getElementById('tools');
  if (!tools) { return; }
  tools.hidden = false;
  document.getElementById('reset').addEventListener('click', function () { zoom(frames[0]); });

  // Time that is counted once where a frame that is found calls another.
  function share(hits) {
    var sum = 0, end = 0;
    hits.sort(function (a, b) { return a.left - b.left || b.width - a.width; }).forEach(function (hit) {
      var right = hit.left + hit.width;
      if (right > end) { sum += right - Math.max(end, hit.left); end = right; }
    });
    return sum;
  }

  document.getElementById('search').addEventListener('input', function (event) {
    var wanted = event.target.value.toLowerCase();
    var hits = frames.filter(function (frame) {
      var hit = wanted !== '' && name(frame).toLowerCase().indexOf(wanted) >= 0;
      frame.element.classList.toggle('hit', hit);
      frame.element.classList.toggle('miss', wanted !== '' && !hit);
      return hit;
    });
    shown.textContent = wanted === '' ? '' : hits.length + (hits.length === 1 ? ' frame, ' : ' frames, ') + share(hits).toFixed(1) + ' % of the time';
  });
}());
