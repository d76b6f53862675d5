"use strict";
// Send a trace of this page to Perfetto's page: PING until PONG, then the trace (perfetto.dev, "Deep linking").
(() => {
  // A Perfetto on this machine may take its place: TRACE.html#perfetto=http://localhost:10000
  const own = /^#perfetto=(http:\/\/(?:localhost|127\.0\.0\.1)(?::\d+)?)$/.exec(location.hash);
  const perfetto = own ? own[1] : "https://ui.perfetto.dev";
  const said = document.getElementById("said");
  let stop = () => {};
  const open = (button) => {
    stop();
    const opened = window.open(perfetto);
    if (!opened) { said.textContent = "The browser blocked the new window. Allow it, or load the file by hand."; return; }
    said.textContent = "Waiting for Perfetto…";
    const ping = setInterval(() => {
      if (opened.closed) { stop(); said.textContent = "Perfetto’s window was closed before it answered. Load the file by hand."; return; }
      opened.postMessage("PING", perfetto);
    }, 100);
    const late = setTimeout(() => { said.textContent = "Perfetto does not answer; perhaps there is no network. Load the file by hand."; }, 5000);
    const answered = (event) => {
      if (event.source !== opened || event.origin !== perfetto || event.data !== "PONG") return;
      stop();
      const packed = atob(document.getElementById(button.dataset.trace).textContent);
      const { buffer } = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
      opened.postMessage({ perfetto: { buffer, title: button.dataset.title, fileName: button.dataset.file } }, perfetto, [buffer]);
      said.textContent = `Sent ${button.dataset.trace} to Perfetto. If it asks whether to open the trace, choose Yes.`;
    };
    stop = () => { clearInterval(ping); clearTimeout(late); window.removeEventListener("message", answered); };
    window.addEventListener("message", answered);
  };
  for (const button of document.querySelectorAll("button[data-trace]")) {
    button.hidden = false;
    button.addEventListener("click", () => open(button));
  }
})();
