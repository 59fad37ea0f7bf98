/* Lets the search run from disk: a browser starts no Worker from file://, so its script runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.frame.srcdoc = "<!doctype html>";
      this.ready = new Promise((resolve, reject) => {
        this.frame.onload = () => {
          this.frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = this.frame.contentDocument.createElement("script");
          script.src = url;
          script.onload = resolve;
          script.onerror = reject;
          this.frame.contentDocument.body.append(script);
        };
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
