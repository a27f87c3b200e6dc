// Browsers start no worker for a page opened from a file. The search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const base = new URL(url, document.baseURI);
      inside.postMessage = (data) => this.tell(data);
      inside.importScripts = (...urls) =>
        urls.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      const load = (one) => new Promise((done) => {
        const script = inside.document.createElement("script");
        script.src = new URL(one, base).href;
        script.onload = done;
        inside.document.body.append(script);
      });
      this.frame = frame;
      this.ready = load(base);
    }
    tell(data) {
      const message = new MessageEvent("message", { data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    }
    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
}
