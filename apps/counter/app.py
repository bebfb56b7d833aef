from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click): self.clicks += 1; print(self.key, self.clicks)
app = App("counter")
app.create_input_stream("clicks", app.create_pe(Count), key="user")
